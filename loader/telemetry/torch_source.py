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
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..protocol import (
    Command,
    Config,
    EpochEvent,
    Event,
    LoaderState,
    Outcome,
    PinStage,
    Queues,
    Snapshot,
    Stall,
    Stalls,
    Times,
    Worker,
    WorkerEvent,
)
from ..sampling import length_of
from .sizes import measure
from .snapshots import Usage
from .stalls import SHORT
from .times import Cause, TimeAccount

if TYPE_CHECKING:
    from .watching import WatchedEpoch

MOST_EVENTS = 4096


class Tasks(dict[int, Any]):
    """Torch's table of tasks that are not yielded yet, which says when a finished one is put aside. Torch keeps
    `(worker,)` for a task and `(worker, batch)` for one that waits for an earlier one.
    """

    def __init__(self, tasks: dict[int, Any], on_aside: Callable[[], None]) -> None:
        super().__init__(tasks)
        self.aside = 0
        """Batches put aside: the reorder buffer."""
        self.yielded: dict[int, int] = {}
        """Worker → batches that came from it."""
        self._on_aside = on_aside

    def __setitem__(self, task: int, entry: Any) -> None:
        super().__setitem__(task, entry)
        if len(entry) == 2:
            self.aside += 1
            self._on_aside()

    def __delitem__(self, task: int) -> None:
        self.pop(task)

    def pop(self, task: int, *default: Any) -> Any:
        entry = super().pop(task, *default)
        if isinstance(entry, tuple) and entry:
            self.aside -= len(entry) == 2
            self.yielded[entry[0]] = self.yielded.get(entry[0], 0) + 1
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
        self._current: weakref.ref[WatchedEpoch] | None = None
        self._iterator: weakref.ref[Any] | None = None
        """The one with workers."""
        self._tasks: Tasks | None = None
        self._workers: dict[int, tuple[int, bool]] = {}
        """Worker → pid, whether it was alive when last looked at."""
        self._usage = Usage()
        self._times = TimeAccount()
        self._before = self._times.copy(time.monotonic_ns())
        self._state: LoaderState = "idle"
        self._length: int | None = None
        self._epoch = -1
        self._batch = 0
        self._batches = 0
        self._samples = 0
        self._bytes = 0
        self._stalls = 0
        self._stall_ns = 0
        self._stall: tuple[int, int, int, int] | None = None
        """Of the stall under way: when it began (ns), batch, worker, batches held back."""
        self._events: deque[Event] = deque()
        self._dropped = 0

    # -- in the training thread -----------------------------------------------------------------------------

    def begin(self, epoch: WatchedEpoch, iterator: Any, length: int | None) -> int:
        """An epoch begins; returns its number."""
        self._current = weakref.ref(epoch, self._check_gone)
        self._iterator = None
        self._before = self._times.copy(time.monotonic_ns())
        self._epoch += 1
        self._batch = 0
        self._length = length
        self._stall = None
        self._tasks = None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            self._iterator = weakref.ref(iterator)
            self._tasks = iterator._task_info = Tasks(iterator._task_info, self._put_aside)
            self._count_workers(iterator)
        self._state = "running"
        self._happened(EpochEvent(time.time(), "started", self._epoch))
        return self._epoch

    def enter(self) -> None:
        """Training asks for a batch."""
        now = time.monotonic_ns()
        self._times.enter(now)
        self._times.wait(now, Cause.STARVATION if self._batch else Cause.STARTUP)
        if self._tasks is not None and self._tasks.aside:
            self._put_aside()

    def leave(self, batch: Any) -> None:
        """Training gets it."""
        now = time.monotonic_ns()
        self._times.leave(now)
        self._state = "running"  # again, where training has caught the error of a batch
        if self._stall is not None:
            self._end_stall(now)
        self._batch += 1
        self._batches += 1
        samples, size = measure(batch)
        self._samples += (samples or self._config.batch_size or 1) if self._batched else 1
        self._bytes += size
        self._times.exit(time.monotonic_ns())

    def end(self, epoch: int, what: Literal["ended", "abandoned", "failed"], reason: str = "") -> None:
        """An epoch is over; only the first call counts."""
        if epoch != self._epoch or self._state != "running":
            return
        now = time.monotonic_ns()
        self._times.leave(now)
        self._times.stop(now)
        self._stall = None
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None and what != "ended":
            for number in range(len(iterator._workers)):  # before torch clears away what tells why it failed
                self._lives(number, iterator)
        self._state = "failed" if what == "failed" else "finished"
        self._happened(EpochEvent(time.time(), what, epoch, self._batch, reason[:16384]))

    def _put_aside(self) -> None:
        """A batch is finished but must wait; if training waits for an earlier one, that is a reorder stall."""
        iterator = None if self._iterator is None else self._iterator()
        tasks = self._tasks
        if iterator is None or tasks is None:
            return
        entry = tasks.get(iterator._rcvd_idx, ())
        if len(entry) == 2:
            return  # the one that training asks for was put aside before: no wait
        now = time.monotonic_ns()
        worker = entry[0] if entry else -1
        if self._stall is None:
            self._times.change(now, Cause.REORDER_STALL)
            self._stall = now, self._batch, worker, tasks.aside
        else:
            self._stall = *self._stall[:3], tasks.aside

    def _end_stall(self, now: int) -> None:
        assert self._stall is not None
        began, batch, worker, held_back = self._stall
        self._stall = None
        self._stalls += 1
        self._stall_ns += now - began
        if now - began >= SHORT:
            at = time.time() - (now - began) * 1e-9
            self._happened(Stall(at, (now - began) // 1000, held_back, self._epoch, batch, worker))

    def _count_workers(self, iterator: Any) -> None:
        pids = {number: worker.pid or 0 for number, worker in enumerate(iterator._workers)}
        for number, (pid, alive) in self._workers.items():
            if alive and pids.get(number) != pid:
                self._happened(WorkerEvent(time.time(), "retired", number, pid))
        for number, pid in pids.items():
            if self._workers.get(number, (0,))[0] != pid:
                self._happened(WorkerEvent(time.time(), "born", number, pid))
        self._workers = {number: (pid, True) for number, pid in pids.items()}

    # -- in any thread --------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > MOST_EVENTS:
            self._events.popleft()
            self._dropped += 1

    def _check_gone(self, _reference: object = None) -> None:
        current = None if self._current is None else self._current()
        self.gone = self._loader() is None and current is None

    def config(self) -> Config:
        return self._config

    def take_events(self) -> list[Event]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def apply(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        answer(Outcome(command.id, "rejected", time.time(), reason="a torch DataLoader cannot be controlled"))

    def snapshot(self, seq: int) -> Snapshot:
        iterator = None if self._iterator is None else self._iterator()
        queues, workers = Queues(), list[Worker]()
        if iterator is not None:
            with contextlib.suppress(AttributeError):  # a torch whose insides are different: less is seen
                queues, workers = self._inside(iterator)
        now = time.monotonic_ns()
        times: Times = self._times.times(now)
        return Snapshot(
            seq,
            time.time(),
            "closed" if self.gone else self._state,
            epoch=max(self._epoch, 0),
            batch=self._batch,
            length=self._length,
            batches=self._batches,
            samples=self._samples,
            bytes=self._bytes,
            target=self._config.num_workers,
            queues=queues,
            times=times,
            epoch_times=self._times.since(self._before, now),
            stalls=Stalls(self._stalls, self._stall_ns // 1000),
            pin=PinStage("accelerator" if self._config.pin_memory and torch.accelerator.is_available() else "off"),
            workers=workers,
            dropped=self._dropped,
        )

    def _inside(self, iterator: Any) -> tuple[Queues, list[Worker]]:
        """Queues and workers. Torch changes these in the training thread meanwhile: each number is right, but not all
        are of the same moment.
        """
        tasks = self._tasks
        aside = 0 if tasks is None else tasks.aside
        unread = _size(iterator._worker_result_queue)
        unpinned, ready = (unread, _size(iterator._data_queue)) if iterator._pin_memory else (0, unread)
        unfinished = max(iterator._tasks_outstanding - unpinned - ready, 0)
        workers = [self._worker(number, iterator, unfinished) for number in range(len(iterator._workers))]
        queues = Queues(
            index=sum(worker.index_queue for worker in workers),
            in_flight=iterator._tasks_outstanding + aside,
            window=iterator._prefetch_factor * iterator._num_workers,
            reorder=aside,
            pin=unpinned,
            data=ready,
        )
        return queues, workers

    def _worker(self, number: int, iterator: Any, unfinished: int) -> Worker:
        pid = iterator._workers[number].pid or 0
        alive = self._lives(number, iterator)
        mine = min(iterator._workers_num_tasks[number], unfinished)
        resident, processor = self._usage.of(pid) if alive else (0, 0)
        yielded = 0 if self._tasks is None else self._tasks.yielded.get(number, 0)
        return Worker(
            number,
            pid,
            ("fetching" if mine else "idle") if alive else "dead",
            index_queue=max(mine - 1, 0),
            batches=yielded,
            rss=resident,
            cpu_ms=processor,
        )

    def _lives(self, number: int, iterator: Any) -> bool:
        """Whether a worker is alive; if it is not any more, that is told once."""
        pid, alive = self._workers.get(number, (0, False))
        status = _exit_status(iterator._workers[number]) if alive else 0
        if status is None or not alive:
            return alive
        self._workers[number] = pid, False
        if iterator._shutdown or self._state != "running" or status == 0:
            self._happened(WorkerEvent(time.time(), "retired", number, pid))
        else:
            name = signal.Signals(-status).name if status < 0 else ""
            self._happened(WorkerEvent(time.time(), "died", number, pid, status, name))
        return False


def _exit_status(process: Any) -> int | None:
    """None while a process lives; else its status as in `multiprocessing`, learned without waiting for it."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        # Torch has waited for it, or is about to note what it learned; or there is no /proc.
        status: int | None = getattr(process._popen, "returncode", None)
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
    return None if isinstance(loader.dataset, IterableDataset) else length_of(loader)


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
