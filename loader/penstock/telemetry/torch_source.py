"""An ordinary torch DataLoader as a source of snapshots and events.

What is seen from outside, and how well:
- Times: exact, but that unpickling a finished batch counts as waiting for it. A wait is a reorder stall from the moment
  at which torch puts a later batch aside; pin wait and pauses do not exist here.
- Queues: dispatched tasks, the reorder buffer and unread results are exact. Which task a worker has begun is not known:
  every living worker with unfinished tasks is taken to be at one of them.
- Workers: alive or not, resident memory and processor time come from /proc. They are never waited for, since whoever
  does that first takes the exit status away from torch.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..protocol import (
    Command,
    Config,
    Event,
    LoaderState,
    Outcome,
    PinStage,
    Queues,
    Snapshot,
    Stall,
    Stalls,
    Worker,
)
from ..sampling import length_of, told_length
from .ledger import Ledger
from .sizes import measure
from .snapshots import Usage
from .stalls import SHORT
from .times import Cause

if TYPE_CHECKING:
    from .watching import WatchedEpoch


class Tasks(dict[int, Any]):
    """Torch's table of tasks that are not yielded yet, which says when a finished one is put aside. Torch keeps
    `(worker,)` for a task and `(worker, batch)` for one that waits for an earlier one.
    """

    def __init__(self, tasks: dict[int, Any], on_aside: Callable[[Tasks], None]) -> None:
        super().__init__(tasks)
        self.aside = 0
        """Batches put aside: the reorder buffer."""
        self.last = -1
        """The worker whose task was taken off the table last."""
        self._on_aside = on_aside

    def __setitem__(self, task: int, entry: Any) -> None:
        super().__setitem__(task, entry)
        if len(entry) == 2:
            self.aside += 1
            self._on_aside(self)

    def __delitem__(self, task: int) -> None:
        self.pop(task)

    def pop(self, task: int, *default: Any) -> Any:
        entry = super().pop(task, *default)
        if isinstance(entry, tuple) and entry:
            self.aside -= len(entry) == 2
            self.last = entry[0]
        return entry


class TorchSource:
    """A `Source`. It keeps neither the loader nor its iterators alive, and is gone when both are."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any], name: str) -> None:
        self.name = name
        self.started = time.time()
        self.gone = False
        self._config = _config(loader)
        self._batched = loader.batch_sampler is not None
        self._loader: weakref.ref[Any] = weakref.ref(loader, self._check_gone)
        self._epochs: dict[int, weakref.ref[WatchedEpoch]] = {}
        """Those that somebody has. Not changed but replaced: others read it without a lock."""
        self._length: int | None = None
        self._ledger = Ledger()
        self._usage = Usage()
        self._looking = threading.RLock()
        """Held while workers are looked at. The collector may end an epoch there, which looks at them, too."""
        self._workers: dict[int, int] = {}
        """pid → number of workers that were alive when last looked at."""
        self._yielded: Counter[int] = Counter()
        """pid → batches that came from it."""
        self._stall: tuple[int, int, int, int] | None = None
        """Of the stall under way: when it began (ns), batch, worker, batches held back."""

    # -- in the training thread -----------------------------------------------------------------------------

    def begin(self, epoch: WatchedEpoch, iterator: Any) -> tuple[int, Tasks | None]:
        """An epoch begins; returns its number, and the table of its tasks if it has workers."""
        number = self._ledger.next_epoch()
        tasks = None
        self._yielded = Counter({pid: count for pid, count in self._yielded.items() if pid in self._workers})
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            tasks = iterator._task_info = Tasks(iterator._task_info, self._put_aside)
            with self._looking:
                for place, worker in enumerate(iterator._workers):
                    if worker.pid and worker.pid not in self._workers:
                        self._workers[worker.pid] = place
                        self._ledger.worker("born", place, worker.pid)
        self._stall = None
        self._length = epoch.length
        living = {n: each for n, each in self._epochs.items() if each() is not None}
        self._epochs = {**living, number: weakref.ref(epoch, self._check_gone)}
        return number, tasks

    def enter(self, epoch: WatchedEpoch) -> None:
        """Training asks for a batch."""
        self._ledger.enter(epoch.number)
        self._ledger.times.wait(time.monotonic_ns(), Cause.STARVATION if epoch.batches else Cause.STARTUP)
        if epoch.tasks is not None and epoch.tasks.aside:
            self._put_aside(epoch.tasks)

    def leave(self, epoch: WatchedEpoch, batch: Any) -> None:
        """Training gets it."""
        ledger, now = self._ledger, time.monotonic_ns()
        ledger.times.leave(now)
        ledger.failed = False  # any more, where training has caught the error of a batch
        if self._stall is not None:
            self._end_stall(now, epoch)
        samples, size = measure(batch)
        ledger.batches += 1
        ledger.samples += (samples or self._config.batch_size or 1) if self._batched else 1
        ledger.bytes += size
        if epoch.tasks is not None and 0 <= epoch.tasks.last < len(epoch.iterator._workers):
            self._yielded[epoch.iterator._workers[epoch.tasks.last].pid] += 1
        ledger.times.exit(time.monotonic_ns())

    def fail(self, epoch: WatchedEpoch, reason: str) -> None:
        """Training gets an error. It may catch it and go on."""
        now = time.monotonic_ns()
        self._ledger.times.leave(now)
        self._ledger.times.exit(now)
        self._stall = None
        if epoch.tasks is not None:
            self._look_at_workers(epoch.iterator)  # before torch clears away what tells why it failed
        self._ledger.end_epoch(epoch.number, "failed", epoch.batches, reason)

    def end(self, epoch: WatchedEpoch, what: Literal["ended", "abandoned"]) -> None:
        """An epoch is over."""
        failed = self._ledger.failed
        self._stall = None
        if what == "ended":
            self._ledger.times.leave(time.monotonic_ns())
        self._ledger.leave(epoch.number)
        if epoch.tasks is not None and what == "abandoned":
            self._look_at_workers(epoch.iterator)
        if not (failed and what == "abandoned"):  # of that was told
            self._ledger.end_epoch(epoch.number, what, epoch.batches)

    def _put_aside(self, tasks: Tasks) -> None:
        """A batch is finished but must wait; if training waits for an earlier one, that is a reorder stall."""
        epoch = self._current()
        if epoch is None or epoch.tasks is not tasks:
            return
        entry = tasks.get(epoch.iterator._rcvd_idx, ())
        if len(entry) == 2:
            return  # the one that training asks for was put aside before: no wait
        now = time.monotonic_ns()
        worker = entry[0] if entry else -1
        if self._stall is None:
            self._ledger.times.change(now, Cause.REORDER_STALL)
            self._stall = now, epoch.batches, worker, tasks.aside
        else:
            self._stall = *self._stall[:3], tasks.aside

    def _end_stall(self, now: int, epoch: WatchedEpoch) -> None:
        assert self._stall is not None
        began, batch, worker, held_back = self._stall
        self._stall = None
        self._ledger.stalls += 1
        self._ledger.stall_ns += now - began
        if now - began >= SHORT:
            at = time.time() - (now - began) * 1e-9
            self._ledger.emit(Stall(at, (now - began) // 1000, held_back, epoch.number, batch, worker))

    # -- in any thread --------------------------------------------------------------------------------------

    def _current(self) -> WatchedEpoch | None:
        """The epoch that training asked for a batch of last."""
        reference = self._epochs.get(self._ledger.current)
        return None if reference is None else reference()

    def _check_gone(self, _reference: object = None) -> None:
        self.gone = self._loader() is None and not any(epoch() is not None for epoch in self._epochs.values())

    def config(self) -> Config:
        return self._config

    def take_events(self) -> list[Event]:
        return self._ledger.take_events()

    def apply(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        answer(Outcome(command.id, "rejected", time.time(), reason="a torch DataLoader cannot be controlled"))

    def snapshot(self, seq: int) -> Snapshot:
        epoch, ledger = self._current(), self._ledger
        queues, workers = Queues(), list[Worker]()
        with contextlib.suppress(AttributeError):  # a torch whose insides are different: less is seen
            if epoch is not None and epoch.tasks is not None:
                queues, workers = self._inside(epoch.iterator, epoch.tasks)
            elif self._workers:
                self._look_at_workers(None)
        now = time.monotonic_ns()
        return Snapshot(
            seq,
            time.time(),
            self._state(),
            epoch=ledger.current,
            batch=ledger.batch if epoch is None or epoch.ended else epoch.batches,
            length=self._length,
            batches=ledger.batches,
            samples=ledger.samples,
            bytes=ledger.bytes,
            target=self._config.num_workers,
            queues=queues,
            times=ledger.times.times(now),
            epoch_times=ledger.times.since(ledger.epoch_times, now),
            stalls=Stalls(ledger.stalls, ledger.stall_ns // 1000),
            pin=PinStage("accelerator" if self._config.pin_memory and torch.accelerator.is_available() else "off"),
            workers=workers,
            dropped=ledger.dropped,
        )

    def _state(self) -> LoaderState:
        if self.gone:
            return "closed"
        if self._ledger.failed:
            return "failed"
        if self._ledger.under_way():
            return "running"
        return "finished" if self._ledger.epochs else "idle"

    def _inside(self, iterator: Any, tasks: Tasks) -> tuple[Queues, list[Worker]]:
        """Queues and workers. Torch changes these in the training thread meanwhile: each number is right, but not all
        are of the same moment.
        """
        aside = tasks.aside
        unread = _size(iterator._worker_result_queue)
        unpinned, ready = (unread, _size(iterator._data_queue)) if iterator._pin_memory else (0, unread)
        unfinished = max(iterator._tasks_outstanding - unpinned - ready, 0)
        alive = self._look_at_workers(iterator)
        workers = [self._worker(number, iterator, unfinished, alive[number]) for number in range(len(alive))]
        queues = Queues(
            index=sum(worker.index_queue for worker in workers),
            in_flight=iterator._tasks_outstanding + aside,
            window=iterator._prefetch_factor * iterator._num_workers,
            reorder=aside,
            pin=unpinned,
            data=ready,
        )
        return queues, workers

    def _worker(self, number: int, iterator: Any, unfinished: int, alive: bool) -> Worker:
        pid = iterator._workers[number].pid or 0
        mine = min(iterator._workers_num_tasks[number], unfinished)
        resident, processor = self._usage.of(pid) if alive else (0, 0)
        return Worker(
            number,
            pid,
            ("fetching" if mine else "idle") if alive else "dead",
            index_queue=max(mine - 1, 0),
            batches=self._yielded[pid],
            rss=resident,
            cpu_ms=processor,
        )

    def _look_at_workers(self, iterator: Any) -> list[bool]:
        """Which of an iterator's workers are alive. Those who have gone, be it another's, are told of once."""
        processes = {} if iterator is None else {process.pid: process for process in iterator._workers}
        with self._looking:
            for pid, number in list(self._workers.items()):
                process = processes.get(pid)
                status = _exit_status(pid, process)
                if status is None:
                    continue
                if self._workers.pop(pid, None) is None:
                    continue
                if process is None or iterator._shutdown or status == 0:
                    self._ledger.worker("retired", number, pid)
                else:
                    name = signal.Signals(-status).name if status < 0 else ""
                    self._ledger.worker("died", number, pid, status, name)
            return [pid in self._workers for pid in processes]


def _exit_status(pid: int, process: Any) -> int | None:
    """None while a process lives; else its status as in `multiprocessing`, learned without waiting for it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        # Torch has waited for it, or is about to note what it learned; or there is no /proc.
        status: int | None = 0 if process is None else getattr(process._popen, "returncode", None)
        return status
    if fields[0] not in "ZX":
        return None
    code = int(fields[49]) if len(fields) > 49 else 0
    return -(code & 0x7F) if code & 0x7F else code >> 8


def _size(queue: Any) -> int:
    try:
        return max(int(queue.qsize()), 0)
    except (NotImplementedError, OSError, ValueError):
        return 0  # macOS does not say; a closed queue is empty


def length_of_epoch(loader: Any) -> int | None:
    """In batches. Not asked of iterable-style loaders: torch remembers the question, and warns later."""
    return None if isinstance(loader.dataset, IterableDataset) else told_length(loader._index_sampler)


def _config(loader: torch.utils.data.DataLoader[Any]) -> Config:
    iterable = isinstance(loader.dataset, IterableDataset)
    context = loader.multiprocessing_context or torch.multiprocessing
    return Config(
        dataset=type(loader.dataset).__name__[:256],
        style="iterable" if iterable else "map",
        dataset_length=None if iterable else length_of(loader.dataset),
        batch_size=loader.batch_size,
        sampler=type(loader.sampler).__name__[:256],
        num_workers=loader.num_workers,
        max_workers=loader.num_workers,
        start_method=(context.get_start_method(allow_none=True) or "") if loader.num_workers else "",
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        in_order=bool(getattr(loader, "in_order", True)),
        prefetch_factor=loader.prefetch_factor,
        timeout=float(loader.timeout),
        control=False,
        engine="torch",
    )
