"""One pass over a sampler: its indices, how far it has come, and a state from which to go on.

A state is small whatever the length of the dataset: the sampler's kind and arguments, the pass's *origin*
(what its random numbers were drawn from, see `origins.py`) and the position. Indices are made again from the
origin, so the state of an earlier position is the same dict with another number in it. The loader, which runs
ahead of training, relies on that: it asks for the state at the batch that training has reached, and keeps
nothing per batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import length_hint
from types import GeneratorType, UnionType
from typing import Any, Protocol, TypeVar

from torch.utils.data import Sampler

from ..taking import is_interruption

State = dict[str, Any]
T = TypeVar("T")

BLOCK = 1 << 14
"""How many indices become Python integers at a time."""


class TrackedIterator(Protocol[T]):
    """An iterator over a sampler that knows where it is."""

    def __iter__(self) -> Iterator[T]: ...

    def __next__(self) -> T: ...

    @property
    def position(self) -> int:
        """How many items it has given."""
        ...

    def fill(self, part: list[T], count: int) -> None:
        """Append the next items to `part` until it has `count`, or fewer at the end.

        After an interruption it is called again with what `part` has by then.
        """
        ...

    def alive(self) -> bool:
        """Can it go on, after something was raised in it?"""
        ...

    def state_dict(self, at: int | None = None) -> State:
        """The state now, or as it was after `at` calls of `next()`, one that met the end included."""
        ...


class IndexIterator(Iterator[int]):
    """One pass over a sampler of ours, from position `start` on.

    Indices come in blocks: Python is entered once for a block or a batch, not once for an index. What a signal handler
    interrupts can be done again (see `taking`); a generator that it ended is made again from the origin.
    """

    def __init__(self, sampler: IndexSampler, origin: State, start: int) -> None:
        self._sampler = sampler
        self._origin = origin
        self._start = start
        self._source: Iterator[Sequence[int]] | None = sampler._blocks(origin, start)
        """None: it was interrupted, and is to be made again."""
        self._blocks = 0
        """Blocks that it has given."""
        self._block: list[Sequence[int]] = []
        """A block that was taken from it and not begun."""
        self._current: Iterator[int] = iter(())
        self._end = start
        """The position at the end of the current block."""
        self._part: list[int] = []
        """The next index, if it was taken and could not be given."""
        self._ended = False

    def __next__(self) -> int:
        self.fill(self._part, 1)
        if not self._part:
            raise StopIteration
        index = self._part[0]
        self._part = []
        return index

    @property
    def position(self) -> int:
        """How many indices of the pass have been given."""
        # Exact, because the iterators of lists and ranges know how much they have left.
        return self._end - length_hint(self._current) - len(self._part)

    def fill(self, part: list[int], count: int) -> None:
        """Append the next indices to `part` until it has `count`, or fewer at the end."""
        part.extend(islice(self._current, count - len(part)))
        while len(part) < count and self._advance():
            part.extend(islice(self._current, count - len(part)))

    def alive(self) -> bool:
        return self._source is None or goes_on(self._source)

    def skip(self, count: int) -> None:
        """Pass over `count` indices."""
        self.fill([], count)

    def state_dict(self, at: int | None = None) -> State:
        """The state now, or as it was after `at` calls of `next()`, one that met the end included."""
        position = self.position
        return {
            **self._sampler._signature(),
            "position": position if at is None else min(at, position),
            "ended": self._ended if at is None else at > position,
            "origin": dict(self._origin or self._sampler._upcoming()),
        }

    def _advance(self) -> bool:
        """Go on to the next block; False at the end."""
        if self._source is None:
            source = self._sampler._blocks(self._origin, self._start)
            deque(islice(source, self._blocks), maxlen=0)
            self._source = source
        if not self._block:
            try:
                self._block.extend(islice(self._source, 1))
            except BaseException as error:
                if is_interruption(error) and not goes_on(self._source):
                    self._source = None
                raise
            if not self._block:
                self._ended = True
                return False
        block = self._block[0]
        end, current = self._end + len(block), iter(block)
        # Nothing is called from here on.
        self._end = end
        self._current = current
        self._blocks += 1
        self._block = []
        return True


class Resumable(Sampler[T]):
    """A sampler whose passes can be saved and resumed."""

    @abstractmethod
    def __iter__(self) -> TrackedIterator[T]: ...

    @abstractmethod
    def resume(self, state: State) -> TrackedIterator[T]:
        """The rest of the pass that gave `state`."""

    @abstractmethod
    def _signature(self) -> State:
        """The kind as "sampler", the size of its source as "length", and what else shapes a pass."""


class IndexSampler(Resumable[int]):
    """A resumable sampler of single indices; `_blocks` says how a pass is made."""

    def __iter__(self) -> IndexIterator:
        return IndexIterator(self, {}, 0)

    def resume(self, state: State) -> IndexIterator:
        """The rest of the pass that gave `state`; random generators are left as that pass left them."""
        check(state, self._signature(), position=int, ended=bool, origin=dict)
        position: int = state["position"]
        origin: State = dict(state["origin"])
        self._restore(origin)
        start = self._nearest(position)
        iterator = IndexIterator(self, origin, start)
        iterator.skip(position - start)
        if iterator.position != position:
            raise ValueError(
                f"Cannot resume {state['sampler']}: the state is at position {position}, "
                f"but the pass ends at {iterator.position}"
            )
        if state["ended"]:
            iterator.skip(1)
        return iterator

    @abstractmethod
    def _blocks(self, origin: State, start: int) -> Iterator[Sequence[int]]:
        """The indices from position `start` on; draws from `origin`, or fills it in if it is empty."""

    def _upcoming(self) -> State:
        """The origin of a pass that would begin now, as far as it is known."""
        return {}

    def _restore(self, origin: State) -> None:
        """Put the generators that the sampler was given back to where the pass began."""

    def _nearest(self, position: int) -> int:  # noqa: ARG002
        """The last position, no later than `position`, at which a pass can be entered directly."""
        return 0


def check(state: State, expected: State, **types: type | UnionType) -> None:
    """Refuse a state that another kind of sampler, or one with other arguments, has given."""
    kind = expected["sampler"]
    if not isinstance(state, dict):
        raise ValueError(f"Cannot resume {kind}: the state should be a dict, but is {state!r}")
    for name, here in expected.items():
        if name not in state:
            raise ValueError(f"Cannot resume {kind}: the state has no {name!r}")
        if state[name] != here:
            raise ValueError(f"Cannot resume {kind}: the state was saved with {name}={state[name]!r}, not {here!r}")
    for name, wanted in types.items():
        if not isinstance(state.get(name), wanted):
            raise ValueError(f"Cannot resume {kind}: the state has {name}={state.get(name)!r}")
    if state["position"] < 0:
        raise ValueError(f"Cannot resume {kind}: the state is at position {state['position']}")


def goes_on(iterator: Iterator[Any]) -> bool:
    """Can it go on, after something was raised in it? A generator is at its end then."""
    return not isinstance(iterator, GeneratorType) or iterator.gi_frame is not None


def length_of(something: object) -> int | None:
    """The length of a sampler or a dataset, if it tells."""
    try:
        return len(something)  # type: ignore[arg-type]
    except Exception:  # it need not have one
        return None
