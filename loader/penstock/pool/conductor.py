"""The conductor: one thread in the training process that runs the pool.

It owns the workers, the window and the slots; nobody else touches them. Other threads leave requests in a deque and
ring the doorbell; the iterating thread only takes from the epoch's data queue.

How everything ends, whatever ends it:

1. Whoever closes the pool sets `closing` and rings. The conductor leaves its loop in every case through `_shut_down`,
   also when it fails.
2. `_shut_down` ends our side of the workers' channels. An idle worker sees that and leaves; a busy one leaves after
   its batch. The last thing that a leaving worker does, after all exit handlers, is to close its descriptors; that is
   what we wait for, for the grace that was asked for, which may become shorter meanwhile. What is left is `dismissed`:
   training goes on, while the zygote kills those who stayed and the system takes the processes apart, which takes its
   time with large ones. The zygote reaps all of them before it exits, and `Nursery.end` waits for that, kills the
   zygote if it must, and closes the last descriptors. `loader.close()` and the end of the interpreter wait for this
   too, and a new pool of the same loader for all but one.
3. If the training process dies instead, the zygote's channel reaches its end (see `zygote`).
4. A forked copy of the training process has no conductor thread; `Pool` knows its owner's pid and does nothing there.
5. Ctrl-C may come while a thread is started, and then nobody knows whether it runs. So the pool's parts belong to
   whoever `claim`s them first: the thread, before anything else it does, or `Pool`, which then undoes what it did.
6. Whoever waits for the end waits for `over`, not for the thread. A `join` that Ctrl-C interrupts takes a running
   thread for ended ever after (Python 3.11), and a thread that ends needs a lock of `threading`'s, which the one that
   waits may hold: the garbage collector runs anywhere.
7. Neither this thread nor `_open` leads to the recipe, and so to what the user's functions and datasets refer to: a
   loader that only they refer to is garbage, and its pool ends with it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..control import Ticket
from ..failures import WorkerLostError
from ..protocol import CommandState
from .arrivals import Arrivals
from .board import Board
from .channel import ChannelClosedError
from .crew import Crew
from .delivery import dispose
from .dispatch import Dispatcher
from .epoch import Epoch
from .losses import Losses
from .nursery import Nursery
from .observer import Cause, Observer
from .roster import Roster, WorkerHandle
from .signals import Doorbell, emptied
from .waits import Waits
from .window import Finished, Task

AT_A_TIME = 2
"""Workers that the zygote is asked for at a time."""
HURRY = 0.3
"""Seconds that busy workers get to finish after Ctrl-C, and at the end of the interpreter."""
LOOK_AGAIN = 5.0
"""ms between two looks at whether a task waits behind a slow batch while somebody has nothing to do."""


class Conductor(threading.Thread):
    def __init__(
        self,
        board: Board,
        base_seed: int,
        workers: int,
        max_retries: int,
        limit_tasks: Callable[[int], int],
        pin: Callable[[Epoch, list[Finished]], None] | None,
        at_end: Callable[[Conductor], None],
        observer: Observer,
        family: object,
    ) -> None:
        super().__init__(name="loader-conductor", daemon=True)
        self.board = board
        self.target = workers
        """How many workers there should be."""
        self.closing = False
        self.grace = 5.0
        self.epoch: Epoch | None = None
        self.observer = observer
        self.family = family
        self.zygotes_lost = 0
        """The iterating thread, which alone may fork or pickle, starts another zygote when this grows."""
        self._crew = Crew(board, base_seed)
        self._dispatcher = Dispatcher(self._crew, limit_tasks)
        self.waits = Waits(self._crew, observer)
        self._requests: deque[tuple[Any, ...]] = deque()
        self._arrivals = Arrivals(self._dispatcher, observer, pin)
        self._losses = Losses(self._arrivals, observer, max_retries)
        self._at_end = at_end
        self._unclaimed = [True]
        self._resume_at: float | None = None
        self._resizing: Ticket | None = None
        self._unsettled = True
        """The number of workers may not be what it should be."""
        self._given_up = False
        self._was_complete = False
        """There were as many workers as there should be, in this epoch."""
        self._paused_before = 0.0
        self._paused_since: float | None = None
        self._ended = False
        self.dismissed = threading.Event()
        """The pool is at its end, but for processes that are on their way out."""
        self.over = threading.Event()
        """The pool is at its end."""
        self.passes_on_interrupt = False
        """Ctrl-C came where nobody could see it, and is to be seen when the pool is at its end."""

    # -- called by other threads ----------------------------------------------------------------------------

    @property
    def roster(self) -> Roster:
        return self._crew.roster

    @property
    def nursery(self) -> Nursery | None:
        return self._crew.nursery

    @property
    def doorbell(self) -> Doorbell:
        return self._crew.doorbell

    @property
    def hungry(self) -> bool:
        """The iterating thread should ring when it has more tasks."""
        return self._dispatcher.hungry

    @property
    def paused(self) -> bool:
        return self._crew.holding

    def request(self, *request: Any) -> None:
        self._requests.append(request)
        if self._ended:
            self._refuse_requests()
        else:
            self.doorbell.ring()

    def claim(self) -> bool:
        """Take charge of the pool's parts; False if somebody else has done so."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def dismiss(self, grace: float) -> None:
        """Begin to end, or hurry up with it, and return at once."""
        self.grace = min(grace, self.grace)
        self.closing = True
        self.doorbell.ring()

    def costs(self) -> dict[int, list[int]]:
        """Id of each worker → the counts of its sample times so far."""
        return self._crew.costs()

    def paused_for(self) -> float:
        """Seconds that the pool has been paused in all."""
        since = self._paused_since
        return self._paused_before + (time.monotonic() - since if since is not None else 0.0)

    def cause(self) -> Cause:
        """Why nothing is ready."""
        return self.waits.cause(self.epoch)

    # -- the thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        if not self.claim():
            return
        try:
            while not self.closing:
                self._step()
        except BaseException as error:
            failure = RuntimeError(f"the loader's conductor thread failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self.closing = True
            try:
                self._shut_down()
            finally:
                try:
                    self._at_end(self)
                finally:
                    self.over.set()
                    if self.passes_on_interrupt:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _step(self) -> None:
        for sender in self._crew.wait(self._patience()):
            if isinstance(sender, Nursery):
                self._hear_zygote(sender)
            else:
                self._hear(sender)
        while self._requests:
            self._unsettled = True
            operation, *rest = self._requests.popleft()
            getattr(self, f"_do_{operation}")(*rest)
        if self._resume_at is not None and time.monotonic() >= self._resume_at:
            self._do_resume(None)
            self.observer.resumed(self.roster.forked(), self._next_batch())
        if self._unsettled:
            self._reconcile()
        epoch = self.epoch
        if epoch is not None:
            if not epoch.abandoned and not self.paused:
                self._dispatcher.dispatch(epoch, self.target)
            self.waits.explain(epoch)

    def _patience(self) -> float | None:
        """How long the conductor may sleep, ms; None: until something happens."""
        timeout = self.waits.patience()
        if self._dispatcher.look_again and self.epoch is not None and not self.paused:
            timeout = min(timeout or LOOK_AGAIN, LOOK_AGAIN)
        if self._resume_at is not None:
            resume = max(0.0, self._resume_at - time.monotonic()) * 1000 + 1
            timeout = resume if timeout is None else min(timeout, resume)
        return timeout

    # -- requests -------------------------------------------------------------------------------------------

    def _do_nursery(self, nursery: Nursery) -> None:
        self._crew.join(nursery)

    def _do_epoch(self, epoch: Epoch, workers: int) -> None:
        self._abandon()
        self.epoch = epoch
        self.target = workers
        self.observer.epoch_began(self._crew.costs())
        self._crew.set_epoch(epoch.number, epoch.shared_seed)
        self._given_up = self._was_complete = False
        self._losses.forgive()
        if self.nursery is None:
            epoch.signal.set()  # whoever waits already has to start another zygote

    def _do_abandon(self, epoch: Epoch) -> None:
        if epoch is self.epoch:
            self._abandon()

    def _do_resize(self, workers: int, ticket: Ticket) -> None:
        reason = self._why_not_now()
        if reason:
            ticket.settle("pending", self.roster.forked(), reason=reason)
            return
        if self._resizing is not None:
            self._resizing.settle("superseded", self.roster.forked(), reason=f"a newer resize asked for {workers}")
        self._resizing = ticket
        self.target = workers

    def _why_not_now(self) -> str:
        """Why a resize has to wait for the next epoch; empty if it need not."""
        if self.epoch is None or self.epoch.error is not None or self._given_up:
            return "no epoch is under way"
        return self.epoch.window.why_fixed()

    def _do_pause(self, resume_after: float | None, ticket: Ticket | None) -> None:
        self._resume_at = None if resume_after is None else time.monotonic() + resume_after
        self._crew.hold(True)
        if self._paused_since is None:
            self._paused_since = time.monotonic()
        self._settle(ticket)

    def _do_resume(self, ticket: Ticket | None) -> None:
        self._resume_at = None
        self._crew.hold(False)
        self._paused_before = self.paused_for()
        self._paused_since = None
        self._settle(ticket)

    def _do_stack(self, answer: Callable[[str], None], task: Task | None) -> None:
        answer(self.waits.stack(self.epoch, task))

    def _settle(self, ticket: Ticket | None) -> None:
        if self.epoch is not None:
            self.epoch.signal.set()  # the clock of a timeout stands still while paused
        if ticket is not None:
            ticket.settle("applied", self.roster.forked(), self._next_batch())

    def _next_batch(self) -> int:
        """The batch index from which a change holds: the first that is not dispatched."""
        if self.epoch is None:
            return 0
        window = self.epoch.window
        return window.next_batch + window.held + window.unfinished

    # -- workers come and go --------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Bring the number of workers to the target."""
        self._unsettled = False
        epoch = self.epoch
        if self.nursery is None or epoch is None or self._given_up:
            return
        active = self.roster.active()
        for worker in active[self.target :]:
            self._crew.retire(worker)
            # At once, not when it goes: those who stay would begin later batches before these.
            self._dispatcher.recall(epoch.window, worker)
        missing = self.target - len(active)
        births = epoch.window.births(self.target)
        while missing > 0 and self._worth_forking(epoch) and self._crew.grow(births, epoch.number):
            missing -= 1
        self._unsettled = missing > 0  # looked at again with every step
        self._was_complete = self._was_complete or missing <= 0
        epoch.window.spread([worker.id for worker in self.roster.active()])
        if self._resizing is not None and self.roster.forked() == self.target:
            self._resizing.settle("applied", self.target, self._next_batch())
            self._resizing = None

    def _worth_forking(self, epoch: Epoch) -> bool:
        """Would another worker have anything to do?

        Forking takes its time with a large dataset, and an epoch that ends meanwhile would have to wait for it. So the
        zygote is asked for a few at a time, and no more when no task is left for them, unless a resize is owed or there
        were enough already in this epoch and one has died. Every
        shard of an iterable-style dataset has its own worker from the beginning.
        """
        if self._resizing is not None or self._was_complete or not epoch.window.shared:
            return True
        if all(worker.id for worker in self.roster):  # the first worker tells all others the bases of their seeds
            return epoch.window.has_waiting() or bool(epoch.window.unfinished)
        unborn = sum(1 for worker in self.roster if not worker.pid)
        return unborn < AT_A_TIME and epoch.window.has_waiting()

    def _hear_zygote(self, nursery: Nursery) -> None:
        self._unsettled = True
        try:
            messages = nursery.channel.receive_ready()
        except ChannelClosedError:
            self._zygote_gone(nursery)
            return
        for operation, *rest in messages:
            if operation == "ready":
                continue
            if operation == "interrupted":
                self._crew.interrupted_at = time.monotonic()
                continue
            if operation == "failed":
                self._fail(rest[0])
                continue
            worker = self.roster.get(rest[0])
            if worker is None:
                continue
            if operation == "forked":
                self.roster.note_fork(worker, rest[1])
                worker.born = True
                self.observer.worker_born(worker.id, worker.pid)
            elif operation == "exited":
                self.roster.note_exit(worker, rest[1], rest[2])
                self._gone(worker, rest[2])
            elif operation == "not forked":
                self._crew.forget(worker)
                self._given_up = True
                self._fail(WorkerLostError(f"a worker process could not be started: {rest[1]}"))

    def _zygote_gone(self, nursery: Nursery) -> None:
        """Its workers die with it; their tasks go to those of the next zygote."""
        self._crew.lose_zygote()
        if self.epoch is not None and self.epoch.error is None:
            self.observer.warn(f"the loader's zygote (pid {nursery.pid}) died")
        for worker in self.roster:
            self._gone(worker, -9, blame=False)
        self.zygotes_lost += 1
        if self.epoch is not None and self.epoch.error is None:
            self.epoch.signal.set()

    def _gone(self, worker: WorkerHandle, exitcode: int, *, blame: bool = True) -> None:
        """A worker's process has ended: take what it had sent, then give its tasks to others."""
        self._heed(worker, self._crew.receive_rest(worker))
        batch = self._crew.busy(worker)
        at = self._crew.started(worker) - 1 if batch >= 0 and blame else -1
        self.observer.worker_gone(worker.id, self._crew.costs_of(worker))
        self.board.clear(worker.id)
        self._crew.forget(worker)
        if worker.left:
            self.observer.worker_left(worker.id, worker.pid, exitcode)
        elif not self._losses.mourn(self.epoch, worker, exitcode, batch, at, blame):
            self._given_up = True

    # -- batches --------------------------------------------------------------------------------------------

    def _hear(self, worker: WorkerHandle) -> None:
        self._heed(worker, self._crew.receive(worker))

    def _heed(self, worker: WorkerHandle, messages: list[Any]) -> None:
        """Do what a worker's messages ask for."""
        for operation, *rest in messages:
            if operation == "batches":
                self._arrivals.receive(self.epoch, worker, *rest)
            elif operation == "hello":
                worker.up = True
                self._losses.forgive()
            elif operation == "left":
                worker.left = True
                if self.epoch is not None:
                    self.epoch.window.take_back(self.epoch.window.owner(worker))

    def _fail(self, error: Any) -> None:
        if self.epoch is not None:
            self.epoch.fail(error)

    # -- ends -----------------------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Give the slots of batches back that nobody will take."""
        epoch = self.epoch
        if epoch is None:
            return
        self.epoch = None
        epoch.abandoned = True
        self.observer.epoch_ended(self._crew.costs())
        for finished in emptied(epoch.ready) + epoch.window.drain():
            dispose(finished)
        epoch.signal.set()

    def _shut_down(self) -> None:
        self._ended = True
        try:
            try:
                self._refuse_requests()
                if self._resizing is not None:
                    _settle_late(self._resizing)
                self._abandon()
            finally:
                self._crew.dismiss()
            began = time.monotonic()
            while (left := began + self._grace(began) - time.monotonic()) > 0 and self._crew.see_off(left * 1000):
                pass
            for worker in self.roster:
                if worker.born:
                    self.observer.worker_left(worker.id, worker.pid, 0)
        finally:
            self.dismissed.set()
            self._crew.end()

    def _grace(self, began: float) -> float:
        """Seconds that workers have from `began` on; few if Ctrl-C was pressed meanwhile or just before."""
        return min(self.grace, HURRY) if self._crew.interrupted_at > began - 1.0 else self.grace

    def _refuse_requests(self) -> None:
        """Answer what nobody will do any more. Both sides of the end call it, so that no request is forgotten."""
        for request in emptied(self._requests):
            for part in request:
                if isinstance(part, Ticket):
                    _settle_late(part)
                elif isinstance(part, Nursery):
                    part.end()


def _settle_late(ticket: Ticket) -> None:
    """The epoch ended before the pool could follow. The loader remembers what was asked for the next one."""
    state: CommandState = "pending" if ticket.outcome.action == "resize" else "applied"
    ticket.settle(state, 0, 0, reason="the epoch has ended: it holds from the next one on")
