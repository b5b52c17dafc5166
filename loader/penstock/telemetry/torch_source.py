"""An ordinary torch DataLoader as a source of snapshots and events, or another library's loader with one inside.

What is seen from outside, and how well:
- Times: exact, but that unpickling a finished batch counts as waiting for it. A wait is a reorder stall from the moment
  at which torch puts a later batch aside; waits for pinning are not told from others.
- Queues: dispatched tasks, the reorder buffer and unread results are exact. Which task a worker has begun is not known:
  every living worker with unfinished tasks is taken to be at one of them.
- Workers: alive or not, resident memory and processor time come from /proc. They are never waited for, since whoever
  does that first takes the exit status away from torch.
- Inside another library's loader: the same, once that has called `iter()` of torch's; before it, nothing.
"""

from __future__ import annotations

import signal
import threading
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from ..pool.observer import Cause
from ..protocol import Config, PinStage, Queues, Stall, Worker
from ..sampling import length_of, told_length
from ..sizes import measure
from ..usage import Used, untold, used_by
from .disguise import attributes_of, disguise_in_place, onlooker_of
from .stalls import SHORT
from .usage import Usage
from .watched_epoch import WatchedEpoch
from .watched_source import Inside, WatchedSource

_OF_WORKERS = ("state_ms", "batch", "samples", "sent_kib", "fetch_us", "collate_us", "send_us", "idle_ms")
"""What only a worker itself could tell."""
_OF_QUEUES = ("reorder_bytes", "finished_bytes", "slots_bytes", "slots_used", "slots_free", "memory_budget")
_OF_PINNING = ("pin.batches", "pin.bytes", "pin.us", "times.pin_wait_us", "epoch_times.pin_wait_us")


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


class TorchSource(WatchedSource):
    """A `Source`. `kind`: the type of what is watched, which may only hold the loader."""

    def __init__(self, loader: DataLoader[Any], name: str, kind: type[Any] = DataLoader) -> None:
        super().__init__(name, _config(loader, kind))
        self._own = issubclass(kind, DataLoader)
        """What is watched is torch's loader itself, and its batches are what that says of them."""
        self._batched = loader.batch_sampler is not None
        self._drop_last = bool(loader.drop_last)
        self._inner: weakref.ref[Any] = weakref.ref(loader)
        self._sees = getattr(kind, "__iter__", None) is DataLoader.__iter__
        """Iterators are torch's own, or one of torch's was seen inside: what is not seen now does not exist."""
        self._seen: weakref.ref[Any] | None = None
        """An iterator of torch's that was made before the epoch that it belongs to."""
        self._usage = Usage()
        self._looking = threading.RLock()
        """Held while workers are looked at. The collector may end an epoch there, which looks at them, too."""
        self._workers: dict[int, int] = {}
        """pid → number of workers that were alive when last looked at."""
        self._yielded: Counter[int] = Counter()
        """pid → batches that came from it."""
        self._stall: tuple[int, int, int, int] | None = None
        """Of the stall under way: when it began (ns), batch, worker, batches held back."""
        if not self._own and onlooker_of(loader) is None:
            disguise_in_place(loader, _Peek(self))

    # -- in the training thread -----------------------------------------------------------------------------

    def begin(self, epoch: WatchedEpoch) -> int:
        number = super().begin(epoch)
        self._yielded = Counter({pid: count for pid, count in self._yielded.items() if pid in self._workers})
        self._stall = None
        made, self._seen = None if self._seen is None else self._seen(), None
        if isinstance(epoch.iterator, _BaseDataLoaderIter):
            made = epoch.iterator
        if made is not None:
            self._look_into(epoch, made)
        return number

    def saw(self, iterator: Any) -> None:
        """Another library's loader called `iter()` of torch's."""
        epoch = self._current() if self.waiting == threading.get_ident() else None
        if epoch is None:
            self._seen = weakref.ref(iterator)
        else:
            self._look_into(epoch, iterator)

    def _look_into(self, epoch: WatchedEpoch, iterator: Any) -> None:
        self._sees = True
        epoch.inner = weakref.ref(iterator)
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            epoch.tasks = iterator._task_info = Tasks(iterator._task_info, self._put_aside)
            with self._looking:
                for place, worker in enumerate(iterator._workers):
                    if worker.pid and worker.pid not in self._workers:
                        self._workers[worker.pid] = place
                        self._ledger.worker("born", place, worker.pid)

    def enter(self, epoch: WatchedEpoch) -> None:
        super().enter(epoch)
        if epoch.tasks is not None and epoch.tasks.aside:
            self._put_aside(epoch.tasks)

    def leave(self, epoch: WatchedEpoch, batch: Any) -> None:
        if self._stall is not None:
            now = time.monotonic_ns()
            self._ledger.times.leave(now)
            self._end_stall(now, epoch)
        super().leave(epoch, batch)
        inner = epoch.inner()
        if inner is not None and epoch.tasks is not None and 0 <= epoch.tasks.last < len(inner._workers):
            self._yielded[inner._workers[epoch.tasks.last].pid] += 1

    def fail(self, epoch: WatchedEpoch, error: BaseException) -> None:
        self._stall = None
        if epoch.tasks is not None:
            self._look_at_workers(epoch.inner())  # before torch clears away what tells why it failed
        super().fail(epoch, error)

    def end(self, epoch: WatchedEpoch, what: Literal["ended", "abandoned"]) -> None:
        self._stall = None
        if epoch.tasks is not None and what == "abandoned":
            self._look_at_workers(epoch.inner())
        super().end(epoch, what)

    def _length_of(self, epoch: WatchedEpoch) -> int | None:
        length = None
        loader = self._inner()
        if isinstance(epoch.iterator, _BaseDataLoaderIter) and loader is not None:
            length = length_of_epoch(loader)
        return super()._length_of(epoch) if length is None else length

    def _measure(self, batch: Any) -> tuple[int | None, int | None]:
        if not self._own:
            return super()._measure(batch)
        samples, size = measure(batch)
        if not self._batched:
            return 1, size or None
        return samples or (self._config.batch_size if self._drop_last else None), size or None

    def _put_aside(self, tasks: Tasks) -> None:
        """A batch is finished but must wait; if training waits for an earlier one, that is a reorder stall."""
        epoch = self._current()
        inner = None if epoch is None else epoch.inner()
        if epoch is None or inner is None or epoch.tasks is not tasks or self.waiting != threading.get_ident():
            return
        entry = tasks.get(inner._rcvd_idx, ())
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

    def _inside(self, epoch: WatchedEpoch | None) -> Inside:
        if not self._sees:
            return super()._inside(epoch)
        self._usage.look()
        unknown = [f"workers.{name}" for name in _OF_WORKERS] + [f"queues.{name}" for name in _OF_QUEUES]
        unknown += untold()
        pin = PinStage("accelerator" if self._config.pin_memory and torch.accelerator.is_available() else "off")
        if pin.mode != "off":
            unknown += _OF_PINNING
        inner = None if epoch is None or epoch.tasks is None else epoch.inner()
        try:
            if epoch is None or inner is None:
                queues, workers = Queues(), self._idle_workers()
            else:
                queues, workers = self._queues_and_workers(inner, epoch.tasks, unknown)
        except AttributeError:  # a torch whose insides are different: less is seen
            return super()._inside(epoch)
        return Inside(queues, workers, pin, tuple(unknown), self._usage.processors())

    def _queues_and_workers(self, iterator: Any, tasks: Tasks, unknown: list[str]) -> tuple[Queues, list[Worker]]:
        """Torch changes these in the training thread meanwhile: each number is right, but not all are of the same
        moment.
        """
        aside = tasks.aside
        unread = _size(iterator._worker_result_queue)
        unpinned, ready = (unread, _size(iterator._data_queue)) if iterator._pin_memory else (0, unread)
        if unpinned is None or ready is None:
            unknown += ["queues.index", "queues.pin", "queues.data", "workers.state", "workers.index_queue"]
            unpinned, ready = unpinned or 0, ready or 0
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
        used = self._usage.of(pid, partial(used_by, pid)) if alive else Used()
        return Worker(
            number,
            pid,
            ("fetching" if mine else "idle") if alive else "dead",
            index_queue=max(mine - 1, 0),
            batches=self._yielded[pid],
            rss=used.resident,
            cpu_ms=used.processor_ms,
            queued_ms=used.queued_ms,
        )

    def _idle_workers(self) -> list[Worker]:
        """Between epochs."""
        if self._workers:
            self._look_at_workers(None)
        return [
            Worker(
                number,
                pid,
                "idle",
                batches=self._yielded[pid],
                rss=used.resident,
                cpu_ms=used.processor_ms,
                queued_ms=used.queued_ms,
            )
            for pid, number in sorted(self._workers.items(), key=lambda item: item[1])
            for used in [self._usage.of(pid, partial(used_by, pid))]
        ]

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


def _size(queue: Any) -> int | None:
    """None: macOS does not say."""
    try:
        return max(int(queue.qsize()), 0)
    except NotImplementedError:
        return None
    except (OSError, ValueError):
        return 0  # a closed queue is empty


class _Peek:
    """The `Onlooker` of a loader of torch's inside another library's: its iterators are seen, and left as they are."""

    def __init__(self, source: TorchSource) -> None:
        self._source = weakref.ref(source)

    def begin(self, iterator: Iterator[Any]) -> Any:
        source = self._source()
        try:
            if source is not None and not source.gone and isinstance(iterator, _BaseDataLoaderIter):
                source.saw(iterator)
        except Exception:
            if source is not None:
                source.give_up()
        return iterator

    def restart(self) -> None:
        """Torch's loaders are not their own iterators."""

    def take(self, advance: Callable[[], Any]) -> Any:
        return advance()

    def told(self, length: int) -> None:
        """The length of what is inside need not be that of the whole."""


def torch_loader_in(thing: object) -> Any:
    """Torch's loader: the thing itself, or the only one that it holds, as Accelerate's, timm's and WebLoader do."""
    if issubclass(type(thing), DataLoader):
        return thing
    attributes = None if isinstance(thing, types.ModuleType) else attributes_of(thing)
    if not isinstance(attributes, dict):
        return None
    held = [value[0] if isinstance(value, list) and value else value for value in attributes.values()]
    loaders = {id(each): each for each in held if issubclass(type(each), DataLoader)}
    return next(iter(loaders.values())) if len(loaders) == 1 else None


def length_of_epoch(loader: Any) -> int | None:
    """In batches. Not asked of iterable-style loaders: torch remembers the question, and warns later."""
    return None if isinstance(loader.dataset, IterableDataset) else told_length(loader._index_sampler)


def _config(loader: DataLoader[Any], kind: type[Any]) -> Config:
    iterable = isinstance(loader.dataset, IterableDataset)
    context = loader.multiprocessing_context or torch.multiprocessing
    return Config(
        dataset=type(loader.dataset).__name__[:256],
        style="iterable" if iterable else "map",
        dataset_length=None if iterable else length_of(loader.dataset),
        batch_size=None if loader.batch_size is None else int(loader.batch_size),
        sampler=type(loader.sampler).__name__[:256],
        num_workers=int(loader.num_workers),
        max_workers=int(loader.num_workers),
        start_method=(context.get_start_method(allow_none=True) or "") if loader.num_workers else "",
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        in_order=bool(getattr(loader, "in_order", True)),
        prefetch_factor=None if loader.prefetch_factor is None else int(loader.prefetch_factor),
        timeout=float(loader.timeout),
        control=False,
        engine="torch",
        kind="torch DataLoader" if kind is DataLoader else kind.__name__[:256],
        unknown=["memory_budget"],
    )
