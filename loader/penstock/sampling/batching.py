"""BatchSampler: the indices of another sampler, a list of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch.utils import data

from ..taking import is_interruption
from .passes import Resumable, State, TrackedIterator, check, length_of
from .tracking import resume, track, upcoming


class BatchSampler(Resumable[list[int]], data.BatchSampler):
    """Lists of `batch_size` indices from `sampler`, any iterable."""

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self)

    def resume(self, state: State) -> BatchIterator:
        """The rest of the pass that gave `state`."""
        check(state, self._signature(), position=int, ended=bool, inner=(dict | None))
        inner: TrackedIterator[int] | None = None
        if state["inner"] is not None:
            inner = resume(self.sampler, state["inner"])
        return BatchIterator(self, inner, state["position"], state["ended"])

    def _signature(self) -> State:
        return {
            "sampler": "BatchSampler",
            "length": length_of(self.sampler),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
        }


class BatchIterator(Iterator[list[int]]):
    """One pass over a BatchSampler; its position counts batches."""

    def __init__(
        self,
        sampler: BatchSampler,
        inner: TrackedIterator[int] | None = None,
        position: int = 0,
        ended: bool = False,
    ) -> None:
        self._sampler = sampler
        self._batch_size = sampler.batch_size
        self._smallest = sampler.batch_size if sampler.drop_last else 1
        self._inner = inner
        self._part: list[int] = []
        """Indices of the next batch."""
        self._position = position
        self._ended = ended

    def __next__(self) -> list[int]:
        if self._ended:
            raise StopIteration
        if self._inner is None:
            self._inner = track(self._sampler.sampler)
        try:
            self._inner.fill(self._part, self._batch_size)
        except BaseException as error:
            if not is_interruption(error):  # as torch's, which is a generator: there is no more
                self._ended, self._part = True, []
            raise
        batch = self._part
        if len(batch) < self._smallest:
            self._ended = True
            raise StopIteration
        # Nothing is called from here on: see `taking`.
        self._part = []
        self._position += 1
        return batch

    @property
    def position(self) -> int:
        """How many batches have been given."""
        return self._position

    def alive(self) -> bool:
        return self._inner is None or self._inner.alive()

    def fill(self, part: list[list[int]], count: int) -> None:
        """Append the next batches to `part` until it has `count`, or fewer at the end."""
        part.extend(islice(self, count - len(part)))

    def state_dict(self, at: int | None = None) -> State:
        """The state now, or as it was after `at` calls of `next()`, one that met the end included."""
        ended = self._ended if at is None else at > self._position
        position = self._position if at is None else min(at, self._position)
        inner: State | None = None
        if self._inner is None:
            inner = upcoming(self._sampler.sampler)
        else:
            # A last, shorter batch has met the end of the sampler: one call beyond the sampler's position.
            inner = self._inner.state_dict(None if ended else position * self._batch_size)
        return {**self._sampler._signature(), "position": position, "ended": ended, "inner": inner}
