"""`DataLoader`: torch's arguments and meaning, on an engine of our own."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, IterableDataset

from . import checkpoint, notebook, sampling
from .arguments import Assumed, given, seconds, whole
from .control import Gate, Outcome, Ticket, check_resume_after, check_workers
from .digest import Digest
from .iteration.base import EpochIterator
from .iteration.inline import InlineIterator
from .iteration.persistent import PersistentEpoch
from .iteration.pooled import PooledIterator
from .pool.pool import wait_for_pools
from .protocol import CommandEvent, LoaderState, Snapshot
from .telemetry import snapshots
from .telemetry.address import resolve
from .telemetry.ledger import Ledger
from .telemetry.published import PublishedLoader
from .telemetry.snapshots import Usage
from .telemetry.source import check_interval

T_co = TypeVar("T_co", covariant=True)

log = logging.getLogger("penstock")

PATIENCE = 5.0
"""Seconds that a call of resize, pause or resume waits for its outcome at the most."""
TORCHS_PREFETCH = Assumed(2)
"""What torch says of a loader with workers where nothing was given."""


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A drop-in for `torch.utils.data.DataLoader`; see there for the arguments that torch has.

    name: how the dashboard calls it.
    memory_budget: bytes that finished batches may take before training takes them. By default 512 MiB, or what two
        batches a worker need if that is more, and never more than a quarter of the memory available at the start.
    max_workers: the most workers that `resize` accepts. By default 128, or four for every processor if that is more.
    max_retries: how many workers a batch may end (by a crash, say) and still be tried again.
    record_samples: so many of the slowest samples of an epoch are kept by index; see `stats().slowest`.
    stack_after: when training has waited so many seconds for one batch while later ones are finished, the Python stack
        of the worker that has it is taken, once, and told with the reorder stall.
    monitor: where to publish. None: $PENSTOCK_URL if it is set; a URL; True: find or start the local dashboard;
        False: nowhere.
    publish_interval: seconds between two snapshots.
    allow_control: whether the dashboard may pause and resize this loader.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        name: str = "loader",
        memory_budget: int | None = None,
        max_workers: int | None = None,
        max_retries: int = 2,
        record_samples: int = 0,
        stack_after: float = 0.5,
        monitor: str | bool | None = None,
        publish_interval: float = 0.2,
        allow_control: bool = True,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.name = name
        self.given_prefetch_factor = given(prefetch_factor)
        if self.given_prefetch_factor is None and num_workers > 0:
            self.prefetch_factor = TORCHS_PREFETCH
        self.memory_budget = whole("memory_budget", memory_budget, None, 1)
        self.max_workers: int = whole("max_workers", max_workers, max(128, 4 * (os.cpu_count() or 1)), 1) or 1
        self.max_retries: int = whole("max_retries", max_retries, 2, 0) or 0
        self.record_samples: int = whole("record_samples", record_samples, 0, 0, 1000) or 0
        self.stack_after = seconds("stack_after", stack_after, 0.01, 86400)
        self.is_iterable = isinstance(dataset, IterableDataset)
        self.ledger = Ledger()
        self.gate = Gate()
        self._owner = os.getpid()
        self.is_closed = False
        self._usage = Usage()
        self._publisher: Any = None
        self.allow_control = allow_control
        self.monitor = monitor
        self.publish_interval = check_interval(publish_interval)
        resolve(monitor)  # says now what is wrong with it
        self._stale = False
        self._pending: int | None = None
        self._pending_ticket: Ticket | None = None
        self._control = threading.RLock()
        self._iterators: tuple[weakref.ref[EpochIterator], ...] = ()
        """The newest last. Replaced and never changed: others read it without a lock."""
        self._length: int | None = None
        """Batches in an epoch, as far as that is known."""
        self._resume_state: checkpoint.State | None = None
        if batch_sampler is None and not self.is_iterable:
            self._use_own_samplers(sampler, bool(shuffle))

    # -- iteration ------------------------------------------------------------------------------------------

    def __iter__(self) -> EpochIterator | PersistentEpoch:  # type: ignore[override]
        self._check_open()
        if self._owner != os.getpid():
            self._start_over_after_fork()
        self._learn_length()
        self._publish()
        with self._control:
            self._check_open()
            if self._pending is not None:
                self.num_workers, self._pending = self._pending, None
            self._pend(None).settle("applied", self.num_workers, 0)
            state = self._resume_state
            if not (self.persistent_workers and self.num_workers > 0):
                iterator = self._get_iterator(state)
                self._resume_state = None
                return iterator
            current: Any = self._iterator
            if current is None:
                current = self._iterator = self._get_iterator(state)  # type: ignore[assignment]
            else:
                current.reset(self, state, refresh=self._stale)
            self._stale, self._resume_state = False, None
            return PersistentEpoch(current)

    def __len__(self) -> int:
        length = super().__len__()
        if not self.is_iterable:
            self._length = length
        return length

    def _learn_length(self) -> None:
        """Here, and not when somebody looks: only the thread that iterates may ask samplers."""
        told = None if self.is_iterable else sampling.told_length(self._index_sampler)
        self._length = self._length if told is None else told

    def _get_iterator(self, state: checkpoint.State | None = None) -> EpochIterator:  # type: ignore[override]
        if self.num_workers == 0:
            return InlineIterator(self, state)
        if self.prefetch_factor is None:
            self.prefetch_factor = TORCHS_PREFETCH  # as torch would have it, had the loader begun with workers
        self.check_worker_number_rationality()
        return PooledIterator(self, state)

    def register(self, iterator: EpochIterator) -> None:
        """An iterator begins an epoch: from now on it is the current one, and controlled."""
        others = [weakref.ref(each) for each in self._living() if each is not iterator]
        self._iterators = (*others, weakref.ref(iterator))

    def _living(self) -> list[EpochIterator]:
        return [iterator for reference in self._iterators if (iterator := reference()) is not None]

    def _current(self) -> EpochIterator | None:
        """The iterator that training used last, if it is still there."""
        number = self.ledger.current
        return next((each for each in reversed(self._living()) if each.number == number), None)

    def _start_over_after_fork(self) -> None:
        """This is a forked copy of the process: pools, if there are any, belong to the original.

        So does the loader's place on the dashboard, if it has one. Where each rank is a fork of a process that only
        made the loader, it has none yet.
        """
        self._owner = os.getpid()
        if self._publisher:
            self._publisher = False
        before, self.ledger = self.ledger, Ledger()
        self.ledger.epochs, self.ledger.digest = before.epochs, before.digest
        self._iterator = None
        self._iterators = ()
        self._control = threading.RLock()
        self.gate = Gate()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process: pools, locks, the publisher."""
        state = dict(self.__dict__)
        for name in ("_control", "_iterators", "_publisher", "gate", "ledger", "_usage", "_pending_ticket"):
            state.pop(name, None)
        state["_iterator"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.ledger = Ledger()
        self._usage = Usage()
        self._publisher = None
        self._length = None
        self._pending_ticket = None
        self._start_over_after_fork()

    # -- live control ---------------------------------------------------------------------------------------

    def resize(self, workers: int) -> Outcome:
        """Have so many workers from now on. May be called from any thread at any moment.

        Growing forks new workers from the zygote; shrinking lets workers finish the batch that they are at. The
        batches and their order stay the same. Without an epoch under way, when loading inline, and for an
        iterable-style dataset that cannot save its position, it takes effect with the next epoch: the outcome is
        then `pending`.
        """
        return self.request_resize(workers).wait(PATIENCE)

    def request_resize(self, workers: int, *, by: str = "local", command: str = "") -> Ticket:
        """Begin a resize and return at once."""
        check_workers(workers, self.max_workers)
        with self._control:
            self._check_open()
            ticket = self._ticket("resize", by, command, workers)
            self._pending = workers
            self._pend(ticket)
            ticket.watch(self._resized)
            running = self._running()
            for iterator in running:
                newest = iterator is running[-1]
                iterator.pool.resize(workers, ticket if newest else Ticket("resize", workers))
            if not running:
                ticket.settle("pending", self.num_workers, reason="it takes effect with the next epoch")
        return ticket

    def _resized(self, ticket: Ticket) -> None:
        if ticket.outcome.state == "applied" and ticket is self._pending_ticket and ticket.outcome.asked is not None:
            self.num_workers, self._pending = ticket.outcome.asked, None

    def _pend(self, ticket: Ticket | None) -> Ticket:
        """Keep the ticket of the newest resize, which may have to wait for the next epoch; return the one before."""
        before, self._pending_ticket = self._pending_ticket, ticket
        if ticket is not None and before is not None:
            before.settle("superseded", self.num_workers, reason=f"a newer resize asked for {ticket.outcome.asked}")
        return before or Ticket("resize")

    def pause(self, resume_after: float | None = None) -> Outcome:
        """Let workers finish the batch that they are at and hold. May be called from any thread at any moment.

        Training goes on with what is finished and then waits. Without an epoch under way the next one starts paused.
        """
        return self.request_pause(resume_after).wait(PATIENCE)

    def request_pause(self, resume_after: float | None = None, *, by: str = "local", command: str = "") -> Ticket:
        """Begin a pause and return at once."""
        seconds = check_resume_after(resume_after)
        with self._control:
            self._check_open()
            self.gate.pause(seconds)
            return self._tell_pools(self._ticket("pause", by, command), "pause", seconds)

    def resume(self) -> Outcome:
        """End a pause. May be called from any thread at any moment."""
        return self.request_resume().wait(PATIENCE)

    def request_resume(self, *, by: str = "local", command: str = "") -> Ticket:
        """Begin to resume and return at once."""
        with self._control:
            self._check_open()
            self.gate.resume()
            return self._tell_pools(self._ticket("resume", by, command), "resume")

    def refresh(self) -> None:
        """Make a persistent pool take the dataset as it is now, from the next epoch on."""
        self._check_open()
        self._stale = True

    def close(self) -> None:
        """End all workers. Iterators under way fail; the loader cannot be iterated over again."""
        with self._control:
            self.is_closed = True
            iterators, self._iterator = self._living(), None
        for iterator in iterators:
            iterator.close_epoch("abandoned")
            if isinstance(iterator, PooledIterator):
                iterator.close()
        wait_for_pools(self.ledger)
        self.gate.close()
        if self._publisher:
            self._publisher.wake()  # it sees that the loader is closed and says goodbye

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("the loader is closed")

    def _running(self) -> list[PooledIterator]:
        """Pools with an epoch under way, the newest last."""
        live = [each for each in self._living() if isinstance(each, PooledIterator) and each.running()]
        return sorted(live, key=lambda each: each.number)

    def _ticket(self, action: Any, by: str, command: str, asked: int | None = None) -> Ticket:
        """A ticket whose outcome becomes an event."""
        ticket, ledger = Ticket(action, asked, self.num_workers), self.ledger

        def settled(ticket: Ticket) -> None:
            outcome = ticket.outcome
            ledger.emit(
                CommandEvent(
                    time.time(),
                    action,
                    outcome.state,
                    by,
                    command,
                    asked,
                    outcome.before,
                    outcome.actual,
                    outcome.at_batch,
                    int(outcome.took * 1e6),
                    outcome.reason[:256],
                )
            )

        ticket.watch(settled)
        return ticket

    def _tell_pools(self, ticket: Ticket, action: str, *arguments: Any) -> Ticket:
        running = self._running()
        for iterator in running:
            last = iterator is running[-1]
            getattr(iterator.pool, action)(*arguments, ticket if last else None)
        if not running:
            current = self._current()
            at = current.yielded if current is not None and not current.ended else 0
            ticket.settle("applied", self.num_workers, at)
        return ticket

    def _publish(self) -> None:
        """Start to publish, if somebody is to see it. A loader in a worker is its user's affair."""
        if self._publisher is not None or torch.utils.data.get_worker_info() is not None:
            return
        self._publisher = False
        if resolve(self.monitor) is None:
            return
        from .telemetry.publisher import publish  # brings websockets, which others need not load

        try:
            self._publisher = publish(PublishedLoader(self), self.monitor, self.publish_interval)
        except Exception:
            log.warning("loader %s cannot be published. Training goes on.", self.name, exc_info=True)
        else:
            self.ledger.spans.watch(time.monotonic_ns())

    # -- telemetry ------------------------------------------------------------------------------------------

    def stats(self, seq: int = 0) -> Snapshot:
        """How everything stands now; `print` shows it as a small table."""
        if self._publisher is None:  # no epoch has begun
            self._learn_length()
        iterator = self._current()
        pool = iterator.pool if isinstance(iterator, PooledIterator) else None
        return snapshots.take(
            seq,
            self.ledger,
            iterator,
            pool,
            self._usage,
            state=self._state(iterator),
            length=self._length,
            pending=self._pending,  # before the target, which follows it in another thread
            target=self.num_workers,
            memory_budget=self.memory_budget,
        )

    def _repr_html_(self) -> str:
        return notebook.html(self.name, self.stats(), self._publisher, self.monitor)

    def _state(self, iterator: EpochIterator | None) -> LoaderState:
        if self.is_closed:
            return "closed"
        if self.ledger.failed or (isinstance(iterator, PooledIterator) and iterator.pool.failed()):
            return "failed"
        if self.gate.status()[0]:
            return "paused"
        if iterator is not None and not iterator.ended:
            return "running"
        return "finished" if self.ledger.epochs else "idle"

    # -- checkpoints ----------------------------------------------------------------------------------------

    def state_dict(self) -> checkpoint.State:
        """The point between two batches at which training is, as a plain dict."""
        current = self._current()
        state: checkpoint.State = {
            **self._describe(),
            "epoch": self.ledger.epochs,
            "batch": 0,
            "base_seed": None,
            "sampler": None,
            "generator": checkpoint.generator_state(self.generator),
            "digest": self.ledger.digest.hex(),
        }
        if self._resume_state is not None:
            return {**self._resume_state}
        if current is not None and not current.exhausted:
            state.update(current.state_dict(), epoch=current.number, base_seed=current.base_seed)
        elif current is not None and self.persistent_workers:
            state["base_seed"] = current.base_seed
        return state

    def load_state_dict(self, state: checkpoint.State) -> None:
        """Go on from a state with the next `iter()`: the rest of that epoch first, then the same following ones."""
        self._check_open()
        checkpoint.check(state, self._describe())
        if state["sampler"] is not None:
            sampling.check_state(self._index_sampler, state["sampler"])
        shards = state.get("shards") or []
        if len(shards) > 1 and not (self._pending or self.num_workers):
            raise ValueError(
                f"the state is of an epoch in {len(shards)} shards: "
                "it can be resumed with workers, not with num_workers=0"
            )
        checkpoint.restore_generator(self.generator, state["generator"])
        self.ledger.epochs = state["epoch"]
        self.ledger.digest = Digest(bytes.fromhex(state["digest"]))
        self._resume_state = state

    def _describe(self) -> checkpoint.State:
        return checkpoint.describe(self.dataset, None if self.is_iterable else self._index_sampler)

    def _use_own_samplers(self, sampler: Any, shuffle: bool) -> None:
        """Replace torch's samplers by ours: the same order, with a state that can be saved."""
        own: Any
        if sampler is not None:
            own = sampler
        elif shuffle:
            own = sampling.RandomSampler(self.dataset, generator=self.generator)  # type: ignore[arg-type]
        else:
            own = sampling.SequentialSampler(self.dataset)  # type: ignore[arg-type]
        # Past the protection of these attributes, which is for users.
        self.__dict__["sampler"] = own
        if self.batch_size is not None:
            self.__dict__["batch_sampler"] = sampling.BatchSampler(own, self.batch_size, self.drop_last)
