"""What inline and pooled iterators have in common."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from torch.autograd.profiler import record_function

from ..checkpoint import State
from ..pinning import choose_mode
from ..sampling import TrackedIterator, resume, track
from ..seeding import draw_base_seed

if TYPE_CHECKING:
    from ..dataloader import DataLoader


class EpochIterator(Iterator[Any]):
    """Iterates over one epoch, from its beginning or from a saved state on."""

    samples_late = False
    """Torch's multi-process iterator makes the sampler's iterator twice: before it draws the seed, and after."""

    def __init__(self, loader: DataLoader[Any], state: State | None) -> None:
        self._name = type(self).__name__
        self.pin_mode = choose_mode(loader.pin_memory, loader.pin_memory_device, slots=loader.num_workers > 0)
        self.ledger = loader.ledger
        self.ledger.pin.mode = self.pin_mode
        # `for batch in DataLoader(...)`: the loader lives, and is published, as long as somebody iterates over it. A
        # persistent loader holds its iterator, and must not be held by it.
        self._keeps = None if loader.persistent_workers else loader
        self._index_sampler: Any = loader._index_sampler
        self._iterable = loader.is_iterable
        self._dataset = loader.dataset
        self._num_workers = loader.num_workers
        self._promised = loader._IterableDataset_len_called
        self._sampler_iter: TrackedIterator[Any] | None = None
        self.base_seed: int
        if state is None or state["base_seed"] is None:
            # Samplers and seed draw from generators in the order in which torch's iterators do.
            if self.samples_late:
                iter(self._index_sampler)
            else:
                self._sampler_iter = track(self._index_sampler)
            self.base_seed = draw_base_seed(loader.generator)
        else:
            self.base_seed = state["base_seed"]
        self.yielded = 0
        self.ended = True
        self.exhausted = False
        """It ended because there is no more, and not early."""
        self.number = 0

    def open(self, loader: DataLoader[Any], state: State | None) -> None:
        """Begin an epoch, or go on with the one that the state is of."""
        if state is not None and state["sampler"] is not None:
            self._sampler_iter = resume(self._index_sampler, state["sampler"])
        elif self._sampler_iter is None or self.samples_late:
            self._sampler_iter = track(self._index_sampler)
        self.yielded = 0 if state is None else state["batch"]
        self.number = self.ledger.next_epoch(self.yielded)
        self.ended = self.exhausted = False
        loader.register(self)

    def close_epoch(self, what: Literal["ended", "abandoned", "failed"], reason: str = "") -> None:
        """The epoch is over, in one way or another; only the first call counts."""
        self.exhausted = self.exhausted or what == "ended"
        if not self.ended:
            self.ended = True
            self.ledger.leave(self.number)
            self.ledger.end_epoch(self.number, what, self.yielded, reason)

    def __next__(self) -> Any:
        try:
            if torch._C._autograd._profiler_enabled():
                with record_function(f"enumerate(DataLoader)#{self._name}.__next__"):
                    data = self._next()
            else:
                data = self._next()
        finally:
            self.ledger.times.exit(time.monotonic_ns())
        self.yielded += 1
        if self._promised is not None and self._iterable and self.yielded > self._promised:
            self._warn_of_length()
        return data

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __del__(self) -> None:
        if "number" in self.__dict__:
            self.close_epoch("abandoned")

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", self._name)

    def state_dict(self) -> State:
        """How far this epoch is, for a state of the loader."""
        sampler = None
        if self._sampler_iter is not None and not self._iterable:
            sampler = self._sampler_iter.state_dict(self.yielded)
        return {"batch": self.yielded, "sampler": sampler, **self._shards_state()}

    def _next(self) -> Any:
        raise NotImplementedError

    def _shards_state(self) -> State:
        return {}

    def _warn_of_length(self) -> None:
        message = (
            f"Length of IterableDataset {self._dataset} was reported to be {self._promised}"
            f"(when accessing len(dataloader)), but {self.yielded} samples have been fetched. "
        )
        if self._num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(message, stacklevel=3)
