"""What training waits for: the conductor's answer, for the time account and for reorder stalls."""

from __future__ import annotations

import time

from .crews.crew import Worker
from .epoch import Epoch
from .observer import Cause, Observer, Stalled
from .roster import Roster
from .window import Task


class Waits:
    """Says for what training waits, and which worker has the batch that it waits for."""

    def __init__(self, roster: Roster, observer: Observer) -> None:
        self._roster = roster
        self._observer = observer

    def cause(self, epoch: Epoch | None, paused: bool) -> Cause:
        """Why nothing is ready."""
        if epoch is None:
            return Cause.STARTUP
        if epoch.pin_entered > epoch.pin_left:
            return Cause.PIN_WAIT
        if paused and not self._any_busy():
            return Cause.PAUSED
        if epoch.window.held:
            return Cause.REORDER_STALL
        return Cause.STARVATION if epoch.finished else Cause.STARTUP

    def lack(self, epoch: Epoch) -> bool:
        """Does training wait because a batch is not finished? The first of an epoch says nothing."""
        return epoch.signal.waiting and epoch.finished > 0 and epoch.pin_entered == epoch.pin_left

    def explain(self, epoch: Epoch, paused: bool) -> None:
        """Tell the epoch's time account why it waits, if it does, and the observer of a reorder stall."""
        now, observer = time.monotonic_ns(), self._observer
        cause = Cause.COMPUTE
        if epoch.signal.waiting:
            cause = self.cause(epoch, paused)
            epoch.times.change(now, cause)
        if cause != Cause.REORDER_STALL:
            observer.stalled(now, None)
            return
        window = epoch.window
        task = window.waited_for()
        worker = self.holder(epoch, task)
        about = (-1, window.next_batch) if task is None else (task.shard, task.batch)
        found = -1 if worker is None else worker.id
        observer.stalled(now, Stalled(epoch.number, window.next_batch, found, window.held, about))
        if observer.wants_stack(now):
            observer.stack_taken(self.stack(epoch, task, 0.2))

    def awaited(self, epoch: Epoch) -> Worker | None:
        """The worker that has the batch that is next, or one that is on its way; None: there is neither."""
        found = self.holder(epoch, epoch.window.waited_for())
        return found or next((each for each in self._roster if each.pid and not each.up), None)

    def holder(self, epoch: Epoch, task: Task | None) -> Worker | None:
        """The worker that has a task."""
        owner = epoch.window.owner
        return None if task is None else next((w for w in self._roster if task.worker == owner(w)), None)

    def stack(self, epoch: Epoch | None, task: Task | None, patience: float = 0.5) -> str:
        """The Python stack of the worker that has the task; empty if nobody answers."""
        worker = None if epoch is None else self.holder(epoch, task)
        return "" if worker is None else worker.stack(patience)

    def _any_busy(self) -> bool:
        """Has a worker taken a task up and not answered it? Its state would say so a little later than its answer."""
        return any(each.started() > each.dispatched - each.outstanding for each in self._roster)

    def patience(self) -> float | None:
        """How long the conductor may sleep before it has to look at a stall again, ms."""
        due = self._observer.next_look(time.monotonic_ns())
        return None if due is None else due / 1e6 + 1
