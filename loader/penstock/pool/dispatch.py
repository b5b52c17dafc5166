"""Handing tasks out: to whichever worker has the least to do, as many as keep it busy and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from .crews.crew import Crew, Worker
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
    def __init__(self, crews: Sequence[Crew], roster: Roster, limit_tasks: Callable[[int], int]) -> None:
        self.hungry = False
        """Workers could take more tasks than there were: the iterating thread should ring when it has some."""
        self.look_again = False
        """Somebody has nothing to do, and tasks may soon have to be recalled from somebody else."""
        self._crews = crews
        self._roster = roster
        self._limit_tasks = limit_tasks
        self._task_ns = 0.0

    def learn(self, nanoseconds: int) -> None:
        """A task took so long."""
        self._task_ns += (nanoseconds - self._task_ns) * 0.1 if self._task_ns else nanoseconds

    def dispatch(self, epoch: Epoch, target: int) -> None:
        """Hand out what the window grants. `target` is how many workers there should be."""
        window = epoch.window
        window.limits.tasks = self._limit_tasks(target)
        window.limits.floor = 2 * target
        workers = [w for w in self._roster if w.up and not w.leaving and not w.closed]
        self._hand_out(epoch, list(workers))
        self.look_again = False
        if window.shared and self._recall_stuck(window, workers):
            self._hand_out(epoch, workers)

    def _hand_out(self, epoch: Epoch, workers: list[Worker]) -> None:
        window = epoch.window
        depth = self._depth()
        taken, taken_bytes = epoch.taken, epoch.taken_bytes
        parcels: dict[Worker, list[Task]] = {}
        while workers:
            worker = min(workers, key=_load)
            if worker.outstanding >= depth:
                break
            task = window.next_task(window.owner(worker), taken, taken_bytes)
            if task is None:
                if window.shared:
                    break
                workers.remove(worker)  # its shards have ended or are far enough ahead; others may not be
                continue
            adopted = window.to_adopt(task)
            if adopted is not None:
                worker.adopt(epoch.number, *adopted)
            task.number = worker.dispatched
            parcels.setdefault(worker, []).append(task)
            worker.outstanding += 1
            worker.dispatched += 1
        self.hungry = not workers or min(workers, key=_load).outstanding < depth
        if parcels:
            for crew in self._crews:
                crew.limit(2 * window.limits.effective(window.largest))
            for worker, tasks in parcels.items():
                worker.give(epoch.number, tasks)

    def _recall_stuck(self, window: Window, workers: list[Worker]) -> bool:
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
                recalled = self.recall(window, worker) or recalled
        return recalled

    def recall(self, window: Window, worker: Worker) -> bool:
        """Take back what a worker has not started; False if there was nothing, or nobody else could do it.

        A task that it takes up at this very moment is made twice; the window accepts it from the other.
        """
        if not window.shared:
            return False
        # Read before the worker can skip any: what it has taken up by now it did not skip.
        started = worker.started()
        worker.recalled = worker.dispatched
        worker.recall()
        owner = window.owner(worker)
        return bool(window.take_back(owner, [task.batch for task in window.out(owner) if task.number >= started]))

    def _depth(self) -> int:
        """How many tasks a worker may have at a time, the one it works at included."""
        if self._task_ns <= 0:
            return 2
        return min(2 + int(AHEAD / self._task_ns), DEEPEST)
