"""Saving and resuming a pass over any sampler, torch's and the user's own included.

Samplers of ours do it themselves. Any other is replayed: its random streams are put back to where they stood
when the pass began, its iterator is made again, and the indices already used are passed over; no data is
loaded. A sampler or iterator with `state_dict` and `load_state_dict` is first put back to its own state then.

A pass has two beginnings, since some samplers draw in `iter()` and others in the first `next()`, and the
loader draws its base seed in between.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeGuard, TypeVar

import torch
from torch.utils import data

from ..seeding import random_streams, read, restore_random_streams, written
from ..taking import by_next
from .passes import Resumable, State, TrackedIterator, check, goes_on, length_of

T = TypeVar("T")

_ASKABLE = ("torch.", "penstock.", "builtins", "numpy", "accelerate.", "lightning.", "pytorch_lightning.")
"""Modules whose samplers tell their length without drawing anything."""

_ARGUMENTS = (
    "batch_size",
    "drop_last",
    "num_replicas",
    "seed",
    "shuffle",
    "replacement",
    "constant_memory",
    "num_processes",
    "split_batches",
)
"""Names under which samplers keep what shapes their order."""


def track(sampler: Iterable[T]) -> TrackedIterator[T]:
    """`iter(sampler)`, able to tell its state."""
    if _tracks_itself(sampler):
        return sampler.__iter__()
    origin = {"before_iter": _streams(sampler), "sampler": _own_state(sampler), "epochs": _epochs(sampler)}
    iterator = iter(sampler)
    origin["iterator"] = _own_state(iterator)
    return ReplayedIterator(sampler, iterator, origin)


def resume(sampler: Iterable[T], state: State) -> TrackedIterator[T]:
    """The rest of the pass over `sampler` that gave `state`."""
    if _tracks_itself(sampler):
        return sampler.resume(state)
    check(state, _signature(sampler), position=int, ended=bool, origin=dict)
    return ReplayedIterator.replay(sampler, state)


def check_state(sampler: Iterable[object], state: State) -> None:
    """Refuse a state that is not of such a sampler."""
    check(state, sampler._signature() if _tracks_itself(sampler) else _signature(sampler))


def upcoming(sampler: Iterable[object]) -> State | None:
    """The state of a pass that has not begun, if there is a way to know it without beginning."""
    return iter(sampler).state_dict() if _tracks_itself(sampler) else None


class ReplayedIterator(Iterator[T]):
    """One pass over a sampler that cannot itself go back to a position."""

    def __init__(self, sampler: Iterable[T], iterator: Iterator[T], origin: State) -> None:
        self._sampler = sampler
        self._iterator = iterator
        self._items = by_next(iterator)
        self._origin = origin
        self._part: list[T] = []
        """The next item, if it was taken and could not be given."""
        self._before = 0
        """The position at which the part under way began."""
        self._position = 0
        self._ended = False
        self._begun = False

    @classmethod
    def replay(cls, sampler: Iterable[T], state: State) -> ReplayedIterator[T]:
        """Go through the pass that gave `state` again, up to its position."""
        origin: State = dict(state["origin"])
        with _global_streams_kept():
            _restore_streams(sampler, origin["before_iter"])
            _load_own_state(sampler, origin["sampler"])
            _restore_epochs(sampler, origin["epochs"])
            replayed = cls(sampler, iter(sampler), origin)
            _load_own_state(replayed._iterator, origin["iterator"])
            if "before_next" in origin:
                _restore_streams(sampler, origin["before_next"])
            replayed.fill([], state["position"] + state["ended"])
        if replayed.position != state["position"]:
            raise ValueError(
                f"Cannot resume {state['sampler']}: the state is at position {state['position']}, "
                f"but the pass ends at {replayed.position}"
            )
        return replayed

    def __next__(self) -> T:
        self.fill(self._part, 1)
        if not self._part:
            raise StopIteration
        item = self._part[0]
        self._part = []
        return item

    @property
    def position(self) -> int:
        """How many items have been given."""
        return self._position

    def fill(self, part: list[T], count: int) -> None:
        """Append the next items to `part` until it has `count`, or fewer at the end."""
        if not part:
            self._before = self._position
        if self._begun or len(part) == count:
            part.extend(islice(self._items, count - len(part)))
        else:
            self._begin(part, count)
        self._position = self._before + len(part)
        self._ended = self._ended or len(part) < count

    def alive(self) -> bool:
        return goes_on(self._iterator)

    def _begin(self, part: list[T], count: int) -> None:
        self._begun = True
        if "before_next" not in self._origin:
            self._origin["before_next"] = _streams(self._sampler)
            part.extend(islice(self._items, count - len(part)))
            return
        with _global_streams_kept():
            _restore_streams(self._sampler, self._origin["before_next"])
            part.extend(islice(self._items, count - len(part)))

    def state_dict(self, at: int | None = None) -> State:
        """The state now, or as it was after `at` calls of `next()`, one that met the end included."""
        return {
            **_signature(self._sampler),
            "position": self._position if at is None else min(at, self._position),
            "ended": self._ended if at is None else at > self._position,
            "origin": {"before_next": _streams(self._sampler), **self._origin},
        }


def _tracks_itself(sampler: Iterable[T]) -> TypeGuard[Resumable[T]]:
    """Whether it is one of ours, and not a subclass with an order of its own."""
    return isinstance(sampler, Resumable) and type(sampler).__iter__.__module__.startswith(__package__)


def _signature(sampler: Iterable[object]) -> State:
    return {"sampler": kind_of(sampler), "length": length_of(sampler), "generators": len(_generators(sampler))}


def kind_of(sampler: object) -> str:
    """The kinds of a sampler and of those that it wraps, with the arguments that shape their order."""
    return " of ".join(_kind(each) for each in _nested(sampler))


def told_length(sampler: object) -> int | None:
    """The length of a sampler, if asking cannot do any harm: one of the user's own may draw random numbers to tell."""
    askable = all(_length_module(each).startswith(_ASKABLE) for each in _nested(sampler))
    return length_of(sampler) if askable else None


def _length_module(sampler: object) -> str:
    """Where the code is that tells the length; "builtins" if it is not Python's."""
    return str(getattr(getattr(type(sampler), "__len__", None), "__module__", None) or "builtins")


def _kind(sampler: object) -> str:
    arguments = [f"{name}={getattr(sampler, name)!r}" for name in _ARGUMENTS if _plain(getattr(sampler, name, None))]
    return f"{type(sampler).__qualname__}({', '.join(arguments)})"


def _plain(value: object) -> bool:
    return isinstance(value, bool | int)


def _nested(sampler: object) -> list[object]:
    """The sampler and those that it wraps, the outermost first."""
    found: list[object] = []
    while sampler is not None and not any(sampler is each for each in found):
        found.append(sampler)
        # Accelerate's shards of a batch sampler call it by the latter name.
        sampler = getattr(sampler, "sampler", getattr(sampler, "batch_sampler", None))
    return found


def _own_state(owner: object) -> Any:
    if hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict"):
        return copy.deepcopy(owner.state_dict())
    return None


def _load_own_state(owner: object, state: Any) -> None:
    if state is not None and hasattr(owner, "load_state_dict"):
        owner.load_state_dict(copy.deepcopy(state))


def own_states(sampler: object) -> list[Any]:
    """The states that a sampler and those that it wraps keep from one pass to the next; None: it keeps none."""
    return [_own_state(each) for each in _nested(sampler)]


def load_own_states(sampler: object, states: list[Any]) -> None:
    for each, state in zip(_nested(sampler), states, strict=False):
        _load_own_state(each, state)


def _streams(sampler: object) -> State:
    return {**random_streams(), "generators": [written(each.get_state()) for each in _generators(sampler)]}


def _restore_streams(sampler: object, streams: State) -> None:
    restore_random_streams(streams)
    for generator, state in zip(_generators(sampler), streams["generators"], strict=True):
        generator.set_state(read(state))


def _generators(sampler: object) -> list[torch.Generator]:
    """The generators of a sampler and of those that it wraps."""
    generators = [getattr(each, "generator", None) for each in _nested(sampler)]
    return [generator for generator in generators if isinstance(generator, torch.Generator)]


def _epochs(sampler: object) -> list[int]:
    """What `set_epoch` told a sampler and those that it wraps."""
    return [each.epoch for each in _nested(sampler) if isinstance(each, data.DistributedSampler)]


def _restore_epochs(sampler: object, epochs: list[int]) -> None:
    found = [each for each in _nested(sampler) if isinstance(each, data.DistributedSampler)]
    for each, epoch in zip(found, epochs, strict=True):
        each.set_epoch(epoch)


@contextmanager
def _global_streams_kept() -> Iterator[None]:
    """Put the global random streams back afterwards: they belong to the training script."""
    now = random_streams()
    try:
        yield
    finally:
        restore_random_streams(now)
