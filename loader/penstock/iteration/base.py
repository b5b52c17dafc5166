"""What inline and pooled iterators have in common."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch.autograd.profiler import record_function
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..checkpoint import State
from ..failures import Failure, WorkerLostError
from ..pinning import choose_mode
from ..pool.observer import Cause
from ..sampling import TrackedIterator, resume, track
from ..seeding import draw_base_seed
from ..taking import by_signal_handler
from ..telemetry.errors import of_exception, of_failure
from ..telemetry.ledger import Counts
from .datapipes import apply_seed

if TYPE_CHECKING:
    from ..dataloader import DataLoader


class Place(NamedTuple):
    """How far training is in an epoch. Replaced, never changed: a batch is counted in one step with its being given."""

    batch: int
    """Batches of the epoch that training has had."""
    nbytes: int = 0
    """Their bytes, since the epoch was begun or resumed."""
    shards: tuple[bytes | None, ...] = ()
    """With workers, for an iterable-style dataset: the position of each shard, as a pickle; None: it was not told."""
    turn: int = 0
    """The shard that is next."""


class EpochIterator(_BaseDataLoaderIter):
    """Iterates over one epoch, from its beginning or from a saved state on.

    It is one of torch's iterators to those who look, with their private attributes as far as others use them.

    A batch is given once, also when a signal handler raises in the midst of `next()`: it waits in `_hand` then, and the
    next call gives it. What `next()` does before it returns can be done again; see `taking`.
    """

    samples_late = False
    """Torch's multi-process iterator makes the sampler's iterator twice: before it draws the seed, and after."""

    def __init__(self, loader: DataLoader[Any], state: State | None) -> None:
        engine = self._engine = loader._penstock
        self._name = type(self).__name__
        self._dataset, self._shared_seed = apply_seed(loader, loader.dataset)
        self.pin_mode = choose_mode(
            loader.pin_memory,
            loader.pin_memory_device,
            slots=loader.num_workers > 0 and engine.options.workers != "thread",
        )
        self._pin_memory = self.pin_mode == "accelerator"
        self.ledger = engine.ledger
        self.ledger.pin.mode = self.pin_mode
        # `for batch in DataLoader(...)`: the loader lives, and is published, as long as somebody iterates over it. A
        # persistent loader holds its iterator, and must not be held by it.
        self._keeps = None if loader.persistent_workers else loader
        self._persistent_workers = loader.persistent_workers
        self._index_sampler: Any = loader._index_sampler
        self._dataset_kind = loader._dataset_kind
        self._iterable = engine.is_iterable
        self._num_workers = loader.num_workers
        self._timeout = loader.timeout
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._sampler_iter: TrackedIterator[Any] | None = None
        if state is None or state["base_seed"] is None:
            # Samplers and seed draw from generators in the order in which torch's iterators do.
            if self.samples_late:
                iter(self._index_sampler)
            else:
                self._sampler_iter = self._timed(track)
            self._base_seed: int = draw_base_seed(loader.generator)
        else:
            self._base_seed = state["base_seed"]
        self.place = self._next_place = Place(0)
        self._next_counts: Counts = (0, 0, 0, b"")
        self._hand: list[Any] = []
        """The batch that is next, if it was taken and training does not have it yet."""
        self._warned_at = 0
        self.ended = True
        self.exhausted = False
        """It ended because there is no more, and not early."""
        self.number = 0
        self.opened = 0
        """How often an epoch was begun or resumed."""
        self._thread: int | None = None
        """The thread that iterates; None: not known yet; 0: several do, and take turns."""
        self._inside = False
        self._turns = threading.Lock()
        self._blame: tuple[Failure | str, int, str] | None = None
        """Of the error that `next()` is about to raise: what a worker told of it or whose code it was in, the batch,
        and the sample."""

    def open(self, state: State | None) -> None:
        """Begin an epoch, or go on with the one that the state is of."""
        if state is not None and state["sampler"] is not None:
            self._sampler_iter = self._timed(lambda sampler: resume(sampler, state["sampler"]))
        elif self._sampler_iter is None or self.samples_late:
            self._sampler_iter = self._timed(track)
        self.place = Place(0 if state is None else state["batch"])
        self.number = self.ledger.next_epoch(self.place.batch)
        self.ended = self.exhausted = False
        self._samples_before = self.ledger.samples
        self.opened += 1
        self._thread = None
        self._engine.register(self)

    def _timed(self, begin: Any) -> TrackedIterator[Any]:
        """Make the sampler's iterator: some do all their work there."""
        start = time.monotonic_ns()
        try:
            iterator: TrackedIterator[Any] = begin(self._index_sampler)
        except Exception as error:
            self.ledger.errors.note(of_exception(error, "sampler", epoch=self.ledger.epochs))
            raise
        finally:
            self.ledger.times.spend(start, time.monotonic_ns(), Cause.SAMPLER)
        return iterator

    def close_epoch(self, what: Literal["ended", "abandoned", "failed"], reason: str = "") -> None:
        """The epoch is over, in one way or another; only the first call counts."""
        self.exhausted = self.exhausted or what == "ended"
        if not self.ended:
            self.ended = True
            self._engine.leave(self)
            self.ledger.leave(self.number)
            self.ledger.end_epoch(self.number, what, self.place.batch, reason)

    def __next__(self) -> Any:
        me = get_ident()
        if self._thread is None:
            with self._turns:
                if self._thread is None:
                    self._thread = me
        if self._thread != me:
            return self._in_turn()
        self._inside = True
        if self._thread != me:  # somebody else came just now
            self._inside = False
            return self._in_turn()
        try:
            try:
                if torch._C._autograd._profiler_enabled():
                    with record_function(f"enumerate(DataLoader)#{self._name}.__next__"):
                        data = self._next()
                else:
                    data = self._next()
            finally:
                self.ledger.times.exit(time.monotonic_ns())
        except BaseException as error:
            self._inside = False
            self._tell_of(error)
            raise
        # Nothing is called from here on: the batch is counted and given, or neither. What stands here is `_count`, too.
        self.place = self._next_place
        ledger = self.ledger
        ledger.batches, ledger.samples, ledger.bytes, ledger.digest.value = self._next_counts
        self._hand = []
        self._inside = False
        return data

    def _count(self) -> None:
        """A batch that failed counts as given: asked for the next, the loader goes on behind it, as torch's does."""
        self.place = self._next_place
        ledger = self.ledger
        ledger.batches, ledger.samples, ledger.bytes, ledger.digest.value = self._next_counts
        self._hand = []

    def _in_turn(self) -> Any:
        """Several threads share the iterator: from now on they take turns.

        Here, and only here, a signal handler that raises may cost the main thread a batch.
        """
        with self._turns:
            self._thread = 0
            while self._inside:  # the first one is in `next()`, and was alone when it entered
                time.sleep(0.001)
            try:
                data = self._next()
            except BaseException as error:
                self._tell_of(error)
                raise
            finally:
                self.ledger.times.exit(time.monotonic_ns())
            self._count()
            return data

    def _tell_of(self, error: BaseException) -> None:
        """`next()` raises. Training may catch it; it is told all the same."""
        blame, self._blame = self._blame, None
        if isinstance(error, StopIteration) or not isinstance(error, Exception) or by_signal_handler(error):
            return
        culprit, batch, sample = blame or ("loading", self.place.batch, "")
        if isinstance(culprit, Failure):
            event = of_failure(culprit, epoch=self.number, batch=batch)
        else:
            where = "worker" if isinstance(error, WorkerLostError) else culprit
            event = of_exception(error, where, epoch=self.number, batch=batch, sample=sample[:256])
        self.ledger.errors.note(event)

    def _due(self, indices: Any, samples: int, nbytes: int, place: Place) -> None:
        """Say what is to be counted when the next batch is given."""
        before = self.place.batch
        self._next_place = place
        self._next_counts = self.ledger.after(self.number, before, indices, self._base_seed, samples, nbytes)
        promised = self._IterableDataset_len_called
        if self._iterable and promised is not None and place.batch > promised and self._warned_at < place.batch:
            self._warned_at = place.batch
            self._warn_of_length(promised, place.batch)

    @property
    def thread(self) -> int:
        """The thread that iterates; 0: not known, or several do."""
        return self._thread or 0

    @property
    def yielded(self) -> int:
        """Batches of the epoch that training has had."""
        return self.place.batch

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]
        return self.place.batch

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and "number" in self.__dict__:
            self.close_epoch("abandoned")

    def state_dict(self) -> State:
        """How far this epoch is, for a state of the loader."""
        sampler = None
        if self._sampler_iter is not None and not self._iterable:
            sampler = self._sampler_iter.state_dict(self.place.batch)
        return {"batch": self.place.batch, "sampler": sampler, **self._shards_state()}

    def final_state(self) -> State:
        """What an iterable-style dataset keeps from this epoch, which has come to its end, to the next."""
        return {}

    def _next(self) -> Any:
        """Make or fetch the next batch and say what is due; may be called again before that was counted."""
        raise NotImplementedError

    def _shards_state(self) -> State:
        return {}

    def _warn_of_length(self, promised: int, yielded: int) -> None:
        message = (
            f"Length of IterableDataset {self._dataset} was reported to be {promised}"
            f"(when accessing len(dataloader)), but {yielded} samples have been fetched. "
        )
        if self._num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(message, stacklevel=6)
