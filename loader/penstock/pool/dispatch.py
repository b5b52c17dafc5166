"""Handing tasks out: to whichever worker has the least to do, as many as keep it busy and no more."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from operator import attrgetter

from .crews.crew import Crew, Worker
from .depth import TORCHS, Depth
from .epoch import Epoch
from .roster import Roster
from .window import Task, Window

DEEPEST = 128
"""Tasks in one worker's index queue at the most."""
AHEAD = 4_000_000
"""Work that a worker should have in its index queue, ns: enough to bridge a wait for the interpreter lock."""

SLOW = 5_000_000
"""A batch that has taken so many ns is slow: nothing is to wait behind it."""

_load = attrgetter("outstanding")


class Dispatcher:
    """Hands tasks to workers, and takes back those that lie behind a slow batch."""

    def __init__(self, crews: Sequence[Crew], roster: Roster, depth: Depth) -> None:
        self.hungry = False
        """Workers could take more tasks than there were: the iterating thread should ring when it has some."""
        self.look_again = False
        """Somebody has nothing to do, and tasks may soon have to be recalled from somebody else."""
        self._crews = crews
        self._roster = roster
        self.depth = depth
        self._task_ns = 0.0
        self._room = 0
        """Bytes of memory that the largest batch so far has travelled in, at the most."""

    def learn(self, nanoseconds: int) -> None:
        """A task took so long."""
        self._task_ns += (nanoseconds - self._task_ns) * 0.1 if self._task_ns else nanoseconds

    def dispatch(self, epoch: Epoch | None, target: int, foreseen: Epoch | None = None) -> None:
        """Hand out what the window grants, and then, if nothing waits, tasks of the epoch that is foreseen.

        `target` is how many workers there should be.
        """
        workers = [w for w in self._roster if w.up and not w.leaving and not w.closed]
        windows = [each.window for each in (epoch, foreseen) if each is not None]
        for window in windows:
            window.limits.tasks = self.depth.tasks(target)
            window.limits.floor = TORCHS * target
        self._hand_out_all(epoch, foreseen, workers)
        self.look_again = False
        if windows[0].shared and self._recall_stuck(windows, workers):
            self._hand_out_all(epoch, foreseen, workers)
        for worker in workers:
            if worker.outstanding:
                worker.restock()

    def weigh(self, epoch: Epoch, target: int, waits: bool) -> bool:
        """After tasks were handed out: should the window be larger or smaller? `waits`: training does, for a batch.

        Returns whether it has changed, so that tasks can be handed out again.
        """
        window, depth = epoch.window, self.depth
        held_back, before = 0, depth.tasks(target)
        for worker in self._roster:
            if worker.up and not worker.leaving and not worker.closed and not worker.outstanding:
                held_back += window.has_waiting(window.owner(worker))
        if held_back and not window.has_memory(epoch.taken, epoch.taken_bytes):
            held_back = 0
        depth.look(
            time.monotonic_ns(),
            target,
            waits=waits,
            held_back=held_back,
            batch_ns=self._task_ns,
            largest=window.largest,
            budget=window.limits.effective(window.largest),
            finished=window.held + window.delivered - epoch.taken if window.has_waiting() else None,
        )
        return depth.tasks(target) > before

    def _hand_out_all(self, epoch: Epoch | None, foreseen: Epoch | None, workers: list[Worker]) -> None:
        if epoch is not None:
            self._hand_out(epoch, list(workers), epoch.taken, epoch.taken_bytes)
        if foreseen is None or (epoch is not None and epoch.window.has_waiting()):
            return
        # What the epoch under way has in flight takes room that the foreseen one then has not: for its window, less
        # than nothing was taken.
        others, others_bytes = (0, 0) if epoch is None else _in_flight(epoch)
        self._hand_out(foreseen, list(workers), -others, -others_bytes)

    def _hand_out(self, epoch: Epoch, workers: list[Worker], taken: int, taken_bytes: int) -> None:
        window = epoch.window
        depth, share = self._depth(), self._share(window)
        parcels: dict[Worker, list[Task]] = {}
        while workers:
            worker = min(workers, key=_load)
            if worker.outstanding >= depth:
                break
            if worker.outstanding + worker.unread() >= share and not window.was_taken_back():
                workers.remove(worker)
                continue
            task = window.next_task(window.owner(worker), taken, taken_bytes)
            if task is None:
                if window.shared:
                    break
                workers.remove(worker)  # its shards have ended or are far enough ahead; others may not be
                continue
            adopted = None if window.shared else window.to_adopt(task)
            if adopted is not None:
                worker.adopt(epoch.number, *adopted)
            task.number = worker.dispatched
            parcels.setdefault(worker, []).append(task)
            worker.outstanding += 1
            worker.dispatched += 1
        self.hungry = not workers or min(workers, key=_load).outstanding < depth
        # A slot may have room for a quarter more than what is in it; while no size is known, nothing is given up.
        self._room = max(self._room, window.largest * 5 // 4)
        if parcels and self._room:
            for crew in self._crews:
                crew.limit((window.limits.tasks + window.limits.floor) * self._room)
        for worker, tasks in parcels.items():
            worker.give(epoch.number, tasks)

    def _recall_stuck(self, windows: list[Window], workers: list[Worker]) -> bool:
        """Take tasks back that lie behind a slow batch while another worker has nothing to do."""
        if all(worker.outstanding for worker in workers):
            return False
        recalled = False
        for worker in workers:
            queued = worker.dispatched - worker.started()
            if worker.outstanding > 1 and queued > 0 and worker.recalled < worker.dispatched:
                if worker.busy_for() < SLOW:
                    self.look_again = True
                    continue
                recalled = self.recall(windows, worker) or recalled
        return recalled

    def recall(self, windows: list[Window], worker: Worker) -> bool:
        """Take back what a worker has not started; False if there was nothing, or nobody else could do it.

        A task that it takes up at this very moment is made twice; the window accepts it from the other.
        """
        if not all(window.shared for window in windows):
            return False
        # Read before the worker can skip any: what it has taken up by now it did not skip.
        started = worker.started()
        worker.recalled = worker.dispatched
        worker.recall()
        taken = 0
        for window in windows:
            owner = window.owner(worker)
            left = [task.batch for task in window.out(owner) if task.number >= started]
            taken += len(window.take_back(owner, left))
        return taken > 0

    def void(self) -> None:
        """Nobody wants done what workers have been given so far."""
        for worker in self._roster:
            worker.void = worker.outstanding
            worker.recalled = worker.dispatched
            worker.recall()

    def _share(self, window: Window) -> int:
        """How many tasks one worker may have in flight, as far as their batches take memory of its own.

        Memory that one worker does not need is none that another could use, so each has its part of the window, as in
        torch. Where that would leave somebody without work the window grows (`depth`). Nothing waits for itself: if all
        have their part, either a worker is at a batch, or training can take one, for the next is finished or was taken
        back, and that is handed out in any case. Of shards the same could not be said.
        """
        limits = window.limits
        # Two at the least: one of them may be a batch that training looks at, and a worker always gets a task then.
        return max(-(-limits.tasks * TORCHS // max(limits.floor, 1)), 2) if window.shared else sys.maxsize

    def _depth(self) -> int:
        """How many tasks a worker may have at a time, the one it works at included."""
        if self._task_ns <= 0:
            return 2
        return min(2 + int(AHEAD / self._task_ns), DEEPEST)


def _in_flight(epoch: Epoch) -> tuple[int, int]:
    """Tasks of an epoch that training has not taken, and bytes that their batches take, or will if they are large."""
    window = epoch.window
    tasks = window.unfinished + window.held + window.delivered - epoch.taken
    finished = window.held_bytes + window.delivered_bytes - epoch.taken_bytes
    return tasks, finished + window.unfinished * window.largest
