"""Workers that are threads of the training process: nothing is forked, pickled or copied.

They are of use where datasets let go of the interpreter lock: decoding, reading, waiting, or a Python without one. What
a thread cannot do: it cannot be killed, so a sample that hangs stays until it returns; and it shares the dataset of a
map-style loader, and the global random generators, with everybody else.

Neither the conductor's thread nor an idle worker leads to the recipe (see point 7 of the conductor's argument): the
`Benches` do, and only the pool refers to those.
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import dataclasses
import logging
import os
import queue
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ...collating import in_huge_pages, serve_torch
from ...profiling.stacks import codes_of
from ...ready import serve, served
from ...sizes import measure
from ...usage import Used, apart, used_by_thread
from ..inbox import Inbox
from ..tasks import Batch
from .board import Word, local_row
from .board_worker import BoardWorker, parcels
from .crew import Crew, Memory, Order, Worker
from .global_draws import GlobalDraws
from .messages import Birth, Look, Message, SharedSeed, Tasks
from .payload import Opened
from .reports import Arrived, Born, Died, Left, Noticed, NotStarted, Up
from .thread_local import OneThread, answer_by_thread, use_one_processor
from .workbench import ROOTS as BELOW
from .workbench import Turn, Workbench

if TYPE_CHECKING:
    from ...profiling.session import Sink
    from ..tasks import Recipe
    from ..window import Task

log = logging.getLogger("penstock")

_living: set[ThreadWorker] = set()
"""Those whose threads have not ended, of all pools: a pool may be gone before its threads."""
os.register_at_fork(after_in_child=_living.clear)

TO_END = 0.5
"""Seconds that a thread that has done its last may take to be gone."""
HURRY, TO_RETURN = 0.3, 5.0
"""Seconds for which the end of the interpreter waits for batches that are under way, and then for samples."""


class ThreadBench(Workbench):
    """A workbench whose batches stay where they were made."""

    def __init__(self, recipe: Recipe, birth: Birth, worker: ThreadWorker) -> None:
        super().__init__(recipe, birth, worker.row, OneThread())
        self._worker = worker
        self._draws = GlobalDraws()

    def _begin(self, epoch: int) -> None:
        super()._begin(epoch)
        self._fetcher = None  # the dataset is training's own, and may be another one inside than in the epoch before

    def _work(self, epoch: int, batch: int, shard: int, indices: Any) -> None:
        sink = self._worker.sink
        if sink is not None:
            sink.look_at_this_thread(self._birth.worker, self._row, (Word.STATE, Word.BATCH))
        if not self._draws.left:
            super()._work(epoch, batch, shard, indices)
            return
        with self._draws:
            super()._work(epoch, batch, shard, indices)
        if self._draws.found:
            message = _SHARED_NUMBERS.format(self._draws.found)
            if self._draws.found == "numpy.random":
                message += _OR_TRAINING
            self._worker.report(Noticed(self._worker, message))

    def _place(self, data: Any) -> Opened:
        return Opened(data, measure(data)[1])

    def _answer(self, fields: tuple[Any, ...]) -> None:
        self._worker.report(Arrived(self._worker, [Batch._make(fields)]))


class Benches:
    """The recipe of a pool's threads, and each one's bench."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.of: dict[int, ThreadBench] = {}
        """By the worker's key."""


class ThreadWorker(BoardWorker):
    """A worker thread, and the queue through which it is sent messages."""

    def __init__(self, inbox: Inbox, key: int, number: int, birth: Birth, benches: weakref.ref[Benches]) -> None:
        super().__init__(key, number, local_row())
        self._inbox = inbox
        self._birth = birth
        self._benches = benches
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.sink: Sink | None = None
        """Where it is told at which line the thread is, while a profile is taken."""
        self.thread = threading.Thread(target=self._live, name=f"loader-worker-{number}", daemon=True)

    def give(self, epoch: int, tasks: list[Task]) -> None:
        self.send(Tasks(parcels(epoch, tasks), [], [], trim=False))

    def send(self, message: Message) -> None:
        self._messages.put(message)

    def report(self, report: Born | Up | Arrived | Noticed | Left | Died) -> None:
        self._inbox.put(report, ring=True)

    def used(self) -> Used:
        return used_by_thread(self.thread.native_id or 0)

    def profile(self, rate: float, sink: Sink) -> None:
        self.sink = sink if rate else None

    def interrupt(self) -> None:
        """Have the thread end as soon as it is back in Python."""
        ident = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))

    def complain(self) -> None:
        """Say that it does not come back."""
        log.warning(
            "worker %d, a thread, is still at batch %d. Threads cannot be ended from outside: it goes when the sample "
            "returns.",
            self.id,
            self.at(),
        )

    def stack(self, patience: float) -> str:  # noqa: ARG002
        frame = None if self.closed else sys._current_frames().get(self.thread.ident or 0)
        lines = []
        while frame is not None and frame.f_code is not ThreadWorker._work_and_report.__code__:
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
        return "\n".join(lines)

    # -- the thread -------------------------------------------------------------------------------------------

    def _live(self) -> None:
        _living.add(self)
        try:
            self._work_and_report()
        finally:
            _living.discard(self)

    def _work_and_report(self) -> None:
        self.report(Born(self))  # here, so that nothing else of it can come before
        use_one_processor()
        serve(in_huge_pages)
        end: Left | Died
        try:
            with apart():
                self._work()
        except BaseException as error:  # SystemExit, say: a process would end of it, and be replaced
            batch = self.at()
            number = self.started() - 1 if batch >= 0 else -1
            message = f"DataLoader worker thread {self.id} ended unexpectedly: {error!r}"
            end = Died(self, 1, message, batch, number, True, self.costs(), self.sample()[0])
        else:
            end = Left(self, 0, self.costs())
        benches = self._benches()
        if benches is not None:
            benches.of.pop(self.key, None)
        del benches
        self.closed = True
        self.report(end)

    def _work(self) -> None:
        bench = self._begin()
        kept = weakref.ref(bench) if bench is not None else None
        while bench is not None and kept is not None:
            turn = bench.turn()
            if turn == Turn.LEAVE:
                return
            if turn == Turn.IDLE:
                del bench  # while it waits, it keeps nothing alive
                message = self._messages.get()
                bench = kept()
                if bench is not None:
                    bench.heed(message)

    def _begin(self) -> ThreadBench | None:
        benches = self._benches()
        if benches is None or self.row[Word.CONTROL] == Order.LEAVE:
            return None
        recipe = dataclasses.replace(benches.recipe)
        if recipe.iterable:  # each worker reads its own, as in processes
            recipe.dataset = copy.deepcopy(recipe.dataset)
        bench = benches.of[self.key] = ThreadBench(recipe, self._birth, self)
        bench.initialize()
        self.report(Up(self))
        return bench


class ThreadCrew(Crew):
    """The worker threads of a pool."""

    name = "the loader's threads"

    def __init__(self, inbox: Inbox, base_seed: int) -> None:
        self._inbox = inbox
        self._base_seed = base_seed
        self._benches: weakref.ref[Benches] | None = None
        self._workers: list[ThreadWorker] = []
        answer_by_thread()
        serve_torch(served)
        torch.get_num_threads()  # the iterating thread has its number from now on: see `use_one_processor`

    def revive(self, recipe: Recipe) -> object:
        """Threads cannot be lost, so this is called once."""
        recipe = dataclasses.replace(recipe)
        if recipe.iterable:  # as it is now, whatever becomes of it in training
            try:
                recipe.dataset = copy.deepcopy(recipe.dataset)
            except Exception as error:
                raise TypeError(
                    "workers='thread' gives every worker a copy of an iterable-style dataset, "
                    f"and this one cannot be copied: {error}"
                ) from error
        benches = Benches(recipe)
        self._benches = weakref.ref(benches)
        return benches

    def grow(self, key: int, number: int, num_workers: int, epoch: int, order: Order) -> Worker | None:
        if self._benches is None:
            return None
        birth = Birth(number, self._base_seed, num_workers)
        worker = ThreadWorker(self._inbox, key, number, birth, self._benches)
        worker.row[Word.CONTROL], worker.row[Word.EPOCH] = order, epoch
        self._workers = [each for each in self._workers if not each.closed]
        self._workers.append(worker)
        worker.pid = os.getpid()
        try:
            worker.thread.start()
        except RuntimeError as error:
            self._workers.remove(worker)
            self._inbox.put(NotStarted(worker, f"a worker thread could not be started: {error}"), ring=True)
        return worker

    def begin_epoch(self, number: int, shared_seed: int | None) -> None:
        for worker in self._workers:
            worker.row[Word.EPOCH] = number
            worker.send(Look() if shared_seed is None else SharedSeed(number, shared_seed))

    def limit(self, nbytes: int) -> None:
        """A batch lies in its own memory, and that is free when training has done with it."""

    def memory(self) -> Memory:
        return Memory()

    def handles(self) -> list[Any]:
        return [worker.thread for worker in self._workers]

    def see_off(self) -> None:
        for worker in self._workers:
            worker.steer(Order.LEAVE)

    def lingers(self) -> bool:
        return any(not worker.closed for worker in self._workers)

    def end(self) -> None:
        """Threads that are in the midst of a sample are left to themselves: they leave when it returns."""
        for worker in self._workers:
            worker.steer(Order.LEAVE)
        for worker in self._workers:
            if worker.closed:
                worker.thread.join(TO_END)
            elif worker.at() >= 0 and threading.main_thread().is_alive():  # else `_await_samples` does
                worker.complain()


@atexit.register
def _await_samples() -> None:
    """At the end of the interpreter: have the samples return that are under way, and begin no others.

    A thread is ended then where it comes back into Python; if it comes out of C++, as torch's functions do, the whole
    process is aborted.
    """
    workers = list(_living)
    for worker in workers:
        worker.steer(Order.LEAVE)
    for seconds, interrupted in ((HURRY, False), (TO_RETURN, True)):
        deadline = time.monotonic() + seconds
        for worker in workers:
            if interrupted and worker.thread.is_alive():
                worker.interrupt()
        for worker in workers:
            worker.thread.join(max(deadline - time.monotonic(), 0.0))
    for worker in workers:
        if worker.thread.is_alive():
            worker.complain()


ROOTS = BELOW | codes_of(ThreadWorker._live, ThreadWorker._work_and_report, ThreadWorker._work, ThreadBench._work)
"""Code below which a profile's stacks begin."""

_SHARED_NUMBERS = (
    "the dataset, or what it calls, draws random numbers from the global generator of `{}`. All threads share it: "
    "with workers='thread' its numbers differ from run to run, and so do training's own. Draw from "
    "`get_worker_info().rng` instead, or give torch's functions `generator=torch.thread_safe_generator()`"
)
_OR_TRAINING = (
    ". (Who calls NumPy's functions cannot be seen: if it is training that draws from it while batches are made, this "
    "is not about the dataset.)"
)
