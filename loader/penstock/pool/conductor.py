"""The conductor: one thread in the training process that runs the pool.

It owns the crews, their workers and the window; nobody else touches them. Other threads leave requests in a deque and
ring the doorbell; the iterating thread only takes from the epoch's data queue.

How everything ends, whatever ends it:

1. Whoever closes the pool sets `closing` and rings. The conductor leaves its loop in every case through `_shut_down`,
   also when it fails.
2. `_shut_down` sees all crews off. Processes: it ends our side of the workers' channels. An idle worker sees that and
   leaves; a busy one leaves after its batch. The last thing that a leaving worker does, after all exit handlers, is to
   close its descriptors; that is what we wait for, for the grace that was asked for, which may become shorter
   meanwhile. What is left is `dismissed`: training goes on, while the zygote kills those who stayed and the system
   takes the processes apart, which takes its time with large ones. The zygote reaps all of them before it exits, and
   `Nursery.end` waits for that, kills the zygote if it must, and closes the last descriptors. `loader.close()` and the
   end of the interpreter wait for this too, and a new pool of the same loader for all but one.
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

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ..control import Ticket
from ..failures import Failure, WorkerLostError
from ..protocol import CommandState
from .arrivals import Arrivals
from .crews.crew import Crew, Order, Worker
from .crews.reports import (
    Arrived,
    Born,
    CrewLost,
    Died,
    Failed,
    HasRoom,
    Interrupted,
    Left,
    Noticed,
    NotStarted,
    PartLost,
    RecipeWanted,
    Report,
    Up,
)  # fmt: skip
from .depth import Depth
from .dispatch import Dispatcher
from .epoch import Epoch
from .glances import Glances
from .hangs import Hangs
from .inbox import Inbox
from .looks import Looks
from .losses import CARRIED_ON, Losses
from .observer import Cause, Observer
from .requests import (
    BeginEpoch,
    ChangeWorkers,
    Foresee,
    GoOn,
    Hold,
    LeaveEpoch,
    LookAt,
    Request,
    Revived,
    SampleStacks,
    TakeStack,
)  # fmt: skip
from .roster import Roster
from .signals import Latch, emptied
from .waits import Waits
from .window import Finished, Window

AT_A_TIME = 2
"""Workers that a crew is asked for at a time."""
HURRY = 0.3
"""Seconds that busy workers get to finish after Ctrl-C, and at the end of the interpreter."""
LOOK_AGAIN = 5.0
"""ms between two looks at whether a task waits behind a slow batch while somebody has nothing to do."""


class Conductor(threading.Thread):
    """The thread that runs one pool: it owns crews, workers and window, and does what other threads request."""

    def __init__(
        self,
        crews: Sequence[Crew],
        inbox: Inbox,
        workers: int,
        most: int,
        max_retries: int,
        depth: Depth,
        pin: Callable[[Epoch, list[Finished]], None] | None,
        at_end: Callable[[Conductor], None],
        observer: Observer,
        family: object,
        tolerates: bool = False,
        sample_timeout: float | None = None,
    ) -> None:
        """`most`: ids of workers are below it. What else is given stands in the pool's `Settings`."""
        super().__init__(name="loader-conductor", daemon=True)
        self.crews = crews
        self.roster = Roster(most)
        self.target = workers
        """How many workers there should be."""
        self.paused = False
        """Workers are told to hold."""
        self.closing = False
        self.grace = 5.0
        self.epoch: Epoch | None = None
        self.foreseen: Epoch | None = None
        """The epoch that will probably be begun next: there are tasks of it for those who have nothing else to do."""
        self.observer = observer
        self.family = family
        self.lost: deque[Crew] = deque()
        """Crews that are lost, until the iterating thread, which alone may fork or pickle, starts them again."""
        self.wanting: deque[Crew] = deque()
        """Crews that ask for the recipe, until the iterating thread gives it to them."""
        self.losses = 0
        """How many were, in all."""
        self._inbox = inbox
        self.doorbell = inbox.doorbell
        self.dispatcher = Dispatcher(crews, self.roster, depth)
        self.waits = Waits(self.roster, observer)
        self._requests: deque[Request] = deque()
        self._looks = Looks(self.roster)
        self._arrivals = Arrivals(self.dispatcher, observer, pin)
        self._glances = Glances(self.roster, observer)
        self._hangs = Hangs(self.roster, tolerates, sample_timeout, max_retries)
        self._losses = Losses(self._arrivals, observer, max_retries, self._hangs)
        self._at_end = at_end
        self._unclaimed = [True]
        self._resume_at: float | None = None
        self._resizing: Ticket | None = None
        self._sampling: SampleStacks | None = None
        self._unsettled = True
        """The number of workers may not be what it should be."""
        self._given_up = False
        self._was_complete = False
        """There were as many workers as there should be, in this epoch."""
        self._interrupted_at = -math.inf
        """When Ctrl-C was pressed last, as far as a crew saw it."""
        self._paused_before = 0.0
        self._paused_since: float | None = None
        self._ended = False
        self.dismissed = Latch()
        """The pool is at its end, but for processes that are on their way out."""
        self.over = Latch()
        """The pool is at its end."""
        self.passes_on_interrupt = False
        """Ctrl-C came where nobody could see it, and is to be seen when the pool is at its end."""

    # -- called by other threads ----------------------------------------------------------------------------

    def request(self, request: Request) -> None:
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

    def paused_for(self) -> float:
        """Seconds that the pool has been paused in all."""
        since = self._paused_since
        return self._paused_before + (time.monotonic() - since if since is not None else 0.0)

    def cause(self) -> Cause:
        """Why nothing is ready."""
        return self.waits.cause(self.epoch, self.paused)

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
        reports = self._inbox.wait(self._patience())
        for report in reports:
            self._heed(report)
        while self._requests:
            self._unsettled = True
            self._do(self._requests.popleft())
        if self._looks.under_way:
            self._looks.step()
        if self._resume_at is not None and time.monotonic() >= self._resume_at:
            self._go_on(None)
            self.observer.resumed(self.roster.present(), self._next_batch())
        if self._unsettled:
            self._reconcile()
        epoch, foreseen = self.epoch, self.foreseen
        wanted = None if epoch is None or epoch.abandoned else epoch
        if (wanted is not None or foreseen is not None) and not self.paused:
            self.dispatcher.dispatch(wanted, self.target, foreseen)
            if wanted is not None and self.dispatcher.weigh(wanted, self.target, self.waits.lack(wanted)):
                self.dispatcher.dispatch(wanted, self.target, foreseen)
        if wanted is not None and not self.paused:
            self._glances.look(wanted, woken=bool(reports))
        if epoch is not None:
            self.waits.explain(epoch, self.paused)
        if self._hangs.timeout is not None and (epoch is not None or foreseen is not None):
            self._hangs.look()

    def _patience(self) -> float | None:
        """How long the conductor may sleep, ms; None: until something happens."""
        if self._looks.under_way:
            return 0.0
        timeout = self.waits.patience()
        at_work = self.epoch is not None or self.foreseen is not None
        if self.dispatcher.look_again and at_work and not self.paused:
            timeout = min(timeout or LOOK_AGAIN, LOOK_AGAIN)
        if self._hangs.timeout is not None and at_work:
            hangs = self._hangs.patience()
            timeout = hangs if timeout is None else min(timeout, hangs)
        if self.epoch is not None and not self.epoch.abandoned and not self.paused:
            glance = self._glances.patience()
            timeout = glance if timeout is None else min(timeout, glance)
        if self._resume_at is not None:
            resume = max(0.0, self._resume_at - time.monotonic()) * 1000 + 1
            timeout = resume if timeout is None else min(timeout, resume)
        return timeout

    # -- requests -------------------------------------------------------------------------------------------

    def _do(self, request: Request) -> None:
        match request:
            case BeginEpoch(epoch, workers):
                self._begin(epoch, workers)
            case Foresee(epoch):
                self._foresee(epoch)
            case LeaveEpoch(epoch):
                if epoch is self.epoch:
                    self._abandon()
            case ChangeWorkers(workers, ticket):
                self._resize(workers, ticket)
            case Hold(resume_after, ticket):
                self._hold(resume_after, ticket)
            case GoOn(ticket):
                self._go_on(ticket)
            case TakeStack(answer, task):
                answer(self.waits.stack(self.epoch, task))
            case LookAt(answer, None):
                holder = None if self.epoch is None else self.waits.awaited(self.epoch)
                self._looks.add([] if holder is None else [holder], answer)
            case LookAt(answer, workers):
                self._looks.add([each for each in self.roster if each.id in (workers or ())], answer)
            case SampleStacks(rate, sink):
                self._sampling = request if rate else None
                for worker in self.roster:
                    if worker.up:
                        worker.profile(rate, sink)
            case Revived():
                pass  # whatever was asked for, the number of workers is looked at

    def _begin(self, epoch: Epoch, workers: int) -> None:
        self._abandon()
        foreseen, self.foreseen = self.foreseen, None
        if foreseen is not None and foreseen is not epoch:
            self.dispatcher.void()
            _discard(foreseen)
        self.epoch = epoch
        self.target = workers
        self.dispatcher.depth.rest()
        self.observer.epoch_began(self.roster.costs())
        self._arrivals.tell(epoch)
        for crew in self.crews:
            crew.begin_epoch(epoch.number, epoch.shared_seed)
        self._given_up = self._was_complete = False
        self._losses.start_over()
        if self.lost:
            epoch.signal.set()  # whoever waits already has to start a crew again

    def _foresee(self, epoch: Epoch) -> None:
        """Only once while an epoch is under way: until the next begins, nobody knows better."""
        if self.epoch is not None and self.foreseen is None:
            epoch.window.largest = self.epoch.window.largest
            self.foreseen = epoch

    def _resize(self, workers: int, ticket: Ticket) -> None:
        reason = self._why_not_now()
        if reason:
            ticket.settle("pending", self.roster.present(), reason=reason)
            return
        if self._resizing is not None:
            self._resizing.settle("superseded", self.roster.present(), reason=f"a newer resize asked for {workers}")
        self._resizing = ticket
        self.target = workers

    def _why_not_now(self) -> str:
        """Why a resize has to wait for the next epoch; empty if it need not."""
        if self.epoch is None or self.epoch.error is not None or self._given_up:
            return "no epoch is under way"
        return self.epoch.window.why_fixed()

    def _hold(self, resume_after: float | None, ticket: Ticket | None) -> None:
        self._resume_at = None if resume_after is None else time.monotonic() + resume_after
        self._steer_all(Order.HOLD)
        if self._paused_since is None:
            self._paused_since = time.monotonic()
        self._settle(ticket)

    def _go_on(self, ticket: Ticket | None) -> None:
        self._resume_at = None
        self._steer_all(Order.RUN)
        self._paused_before = self.paused_for()
        self._paused_since = None
        self._settle(ticket)

    def _steer_all(self, order: Order) -> None:
        self.paused = order == Order.HOLD
        self.dispatcher.depth.rest()
        for worker in self.roster:
            if not worker.leaving:
                worker.steer(order)

    def _settle(self, ticket: Ticket | None) -> None:
        if self.epoch is not None:
            self.epoch.signal.set()  # the clock of a timeout stands still while paused
        if ticket is not None:
            ticket.settle("applied", self.roster.present(), self._next_batch())

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
        if epoch is None or self._given_up:
            return
        active = self.roster.active()
        for worker in active[self.target :]:
            worker.leaving = True
            worker.steer(Order.LEAVE)
            # At once, not when it goes: those who stay would begin later batches before these.
            self.dispatcher.recall(self._windows(), worker)
        missing = self.target - len(active)
        while missing > 0 and self._worth_growing(epoch) and self._grow(epoch):
            missing -= 1
        self._unsettled = missing > 0  # looked at again with every step
        self._was_complete = self._was_complete or missing <= 0
        epoch.window.spread([worker.id for worker in self.roster.active()])
        if self._resizing is not None and self.roster.present() == self.target:
            self._resizing.settle("applied", self.target, self._next_batch())
            self._resizing = None

    def _grow(self, epoch: Epoch) -> bool:
        """Have whichever crew can make another worker; False if none can now."""
        number = self.roster.free_id()
        if number is None:
            return False
        key, births = self.roster.new_key(), epoch.window.births(self.target)
        order = Order.HOLD if self.paused else Order.RUN
        for crew in self.crews:
            worker = crew.grow(key, number, births, epoch.number, order)
            if worker is not None:
                self.roster.add(worker)
                return True
        return False

    def _worth_growing(self, epoch: Epoch) -> bool:
        """Would another worker have anything to do?

        Forking takes its time with a large dataset, and an epoch that ends meanwhile would have to wait for it. So a
        crew is asked for a few at a time, and no more when no task is left for them, unless a resize is owed or there
        were enough already in this epoch and one has died. Every
        shard of an iterable-style dataset has its own worker from the beginning.
        """
        if self._resizing is not None or self._was_complete or not epoch.window.shared:
            return True
        if all(worker.id for worker in self.roster):  # the first worker tells all others the bases of their seeds
            return epoch.window.has_waiting() or bool(epoch.window.unfinished)
        unborn = sum(1 for worker in self.roster if not worker.pid)
        return unborn < AT_A_TIME and epoch.window.has_waiting()

    def _heed(self, report: Report) -> None:
        match report:
            case Arrived(worker, batches):
                self._arrivals.receive(self.epoch, self.foreseen, worker, batches)
                return
            case Up(worker):
                worker.up = True
                self._losses.start_over()
                if worker.id == 0:
                    self._share_bases()
                if self._sampling is not None:
                    worker.profile(*self._sampling)
                return
            case Noticed(_, message):
                self.observer.warn("noticed", message)
                return
            case Born(worker):
                worker.born = True
                self.observer.worker_born(worker.id, worker.pid)
            case Left(worker, exitcode, costs):
                self._forget(worker, costs)
                for window in self._windows():
                    window.take_back(window.owner(worker))
                self.observer.worker_left(worker.id, worker.pid, exitcode)
            case Died():
                self._forget(report.worker, report.costs)
                if not self._losses.recover(self.epoch, self.foreseen, report):
                    self._given_up = True
            case NotStarted(worker, reason):
                self.roster.remove(worker)
                self._given_up = True
                self._fail(WorkerLostError(reason))
            case Failed(error):
                self._fail(error)
            case Interrupted():
                self._interrupted_at = time.monotonic()
            case PartLost(about, message):
                self.observer.warn(f"lost {about}", f"{message}. {CARRIED_ON}")
            case RecipeWanted(crew):
                self.wanting.append(crew)
                if self.epoch is not None:
                    self.epoch.signal.set()
            case HasRoom():
                pass  # whatever is reported, the number of workers is looked at
            case CrewLost(crew, message):
                self._lose(crew, message)
        self._unsettled = True

    def _share_bases(self) -> None:
        """What the first worker has found out holds for the workers of all crews."""
        bases = next((found for crew in self.crews if (found := crew.bases()) is not None), None)
        if bases is not None:
            for crew in self.crews:
                crew.share_bases(bases)

    def _windows(self) -> list[Window]:
        """Those whose tasks workers may have."""
        return [epoch.window for epoch in (self.epoch, self.foreseen) if epoch is not None]

    def _forget(self, worker: Worker, costs: list[int]) -> None:
        self.roster.remove(worker)
        self.observer.worker_gone(worker.id, costs)

    def _lose(self, crew: Crew, message: str) -> None:
        """The tasks of its workers, whose deaths are reported next, go to others, or to those of the crew revived."""
        self.losses += 1
        self.lost.append(crew)
        if self.epoch is not None and self.epoch.error is None:
            self.observer.warn("lost", f"{message}. {CARRIED_ON}")
            self.epoch.signal.set()

    def _fail(self, error: BaseException | Failure) -> None:
        if self.epoch is not None:
            self.epoch.fail(error)

    # -- ends -----------------------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Give the memory of batches back that nobody will take."""
        epoch = self.epoch
        if epoch is None:
            return
        self.epoch = None
        self.observer.epoch_ended(self.roster.costs())
        _discard(epoch)

    def _shut_down(self) -> None:
        self._ended = True
        try:
            try:
                self._refuse_requests()
                self._looks.end()
                if self._resizing is not None:
                    _settle_late(self._resizing)
                self._abandon()
                if self.foreseen is not None:
                    _discard(self.foreseen)
                    self.foreseen = None
            finally:
                for crew in self.crews:
                    crew.see_off()
            began = time.monotonic()
            while (left := began + self._grace(began) - time.monotonic()) > 0 and self._lingers():
                if Interrupted() in self._inbox.wait(left * 1000):
                    self._interrupted_at = time.monotonic()
            for worker in self.roster:
                if worker.born:
                    self.observer.worker_left(worker.id, worker.pid, 0)
        finally:
            self.dismissed.set()
            self._end_crews()

    def _lingers(self) -> bool:
        return any(crew.lingers() for crew in self.crews)

    def _end_crews(self) -> None:
        """All of them, also when one fails."""
        try:
            for crew in self.crews:
                crew.end()
        finally:
            for worker in self.roster:
                self.roster.remove(worker)
            self._inbox.close()

    def _grace(self, began: float) -> float:
        """Seconds that workers have from `began` on; few if Ctrl-C was pressed meanwhile or just before."""
        return min(self.grace, HURRY) if self._interrupted_at > began - 1.0 else self.grace

    def _refuse_requests(self) -> None:
        """Answer what nobody will do any more. Both sides of the end call it, so that no request is forgotten."""
        for request in emptied(self._requests):
            match request:
                case ChangeWorkers(_, Ticket() as ticket) | Hold(_, Ticket() as ticket) | GoOn(Ticket() as ticket):
                    _settle_late(ticket)
                case LookAt(answer, _):
                    answer([])


def _discard(epoch: Epoch) -> None:
    """Nobody takes from it, or ever will."""
    epoch.abandoned = True
    for finished in emptied(epoch.ready) + epoch.window.drain():
        finished.discard()
    epoch.signal.set()


def _settle_late(ticket: Ticket) -> None:
    """The epoch ended before the pool could follow. The loader remembers what was asked for the next one."""
    state: CommandState = "pending" if ticket.outcome.action == "resize" else "applied"
    ticket.settle(state, 0, 0, reason="the epoch has ended: it holds from the next one on")
