"""Handing tasks out: to whichever worker has the least to do, as many as keep it busy and no more."""

from __future__ import annotations

from collections.abc import Sequence
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

LOOKAHEAD = 512
"""Batches that may be in flight unless `prefetch_factor` says otherwise; the memory budget usually bites first."""

_load = attrgetter("outstanding")


def limit_tasks(prefetch_factor: int | None, workers: int) -> int:
    """How many tasks may be in flight with so many workers."""
    return max(LOOKAHEAD, 2 * workers) if prefetch_factor is None else prefetch_factor * workers


class Dispatcher:
    """Hands tasks to workers, and takes back those that lie behind a slow batch."""

    def __init__(self, crews: Sequence[Crew], roster: Roster, prefetch_factor: int | None) -> None:
        self.hungry = False
        """Workers could take more tasks than there were: the iterating thread should ring when it has some."""
        self.look_again = False
        """Somebody has nothing to do, and tasks may soon have to be recalled from somebody else."""
        self._crews = crews
        self._roster = roster
        self._prefetch_factor = prefetch_factor
        self._task_ns = 0.0

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
            window.limits.tasks = limit_tasks(self._prefetch_factor, target)
            window.limits.floor = 2 * target
        self._hand_out_all(epoch, foreseen, workers)
        self.look_again = False
        if windows[0].shared and self._recall_stuck(windows, workers):
            self._hand_out_all(epoch, foreseen, workers)

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
        depth = self._depth()
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
            adopted = None if window.shared else window.to_adopt(task)
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
