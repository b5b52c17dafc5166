"""The window: which task is dispatched next, and which finished batch is delivered next. Plain objects, no IO.

Why nothing is lost, doubled, out of order or stuck:

1. Tasks are numbered without gaps as they are drawn. A task is in exactly one of four places: waiting (drawn, or
   taken back from a worker that did not finish it), out (with one worker), held (finished, in the reorder buffer) or
   delivered. `finish` accepts a batch only from the worker that has it out, so a batch that was given to another
   worker after a crash cannot be delivered twice.
2. `finish` delivers batch i only when all batches before i are delivered (or at once, if order was not asked for).
3. Tasks go out in the order of their numbers, those taken back first. So the batch that holds up delivery is always
   out or first in line, and `next_task` grants a batch that was taken back, or the only one in flight, whatever the
   memory budget says. So the window never waits for itself.
4. The finished bytes stay within the budget, because a task is granted only if all finished batches, and all
   unfinished ones taken at the size of the largest seen, would still fit.

`sharding` has the window for iterable-style datasets.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Task:
    """The indices of one batch."""

    batch: int
    """Batch index within the epoch; of a shard, until it is delivered, the number within the shard."""
    indices: Any
    shard: int = -1
    worker: int = -1
    """The worker that has it; -1: none."""
    number: int = -1
    """Its number among all tasks that were handed to that worker."""
    crashes: int = 0
    """Workers that died of it."""


@dataclass(slots=True, eq=False)
class Finished:
    """A task with what became of it."""

    task: Task
    result: Any
    nbytes: int
    worker: int = -1
    """Id of the worker that made it."""
    lease: Any = None
    """The lease of its slot, until training has the batch."""

    def take_result(self) -> Any:
        result, self.result = self.result, None
        return result


@dataclass(slots=True)
class Limits:
    """What may be in flight."""

    tasks: int
    """At most so many tasks."""
    budget: int
    """Finished batches may take so many bytes,"""
    ceiling: int
    """or up to so many, if that is what `floor` tasks need."""
    floor: int

    def allow(self, in_flight: int, unfinished: int, finished_bytes: int, largest: int) -> bool:
        """May one more task go out?"""
        if in_flight == 0:
            return True
        if in_flight >= self.tasks:
            return False
        if largest == 0:
            # Nothing is known of the size yet; a budget that may stretch allows what torch would.
            return self.ceiling > self.budget and in_flight < self.floor
        needed = finished_bytes + (unfinished + 1) * largest
        return needed <= self.budget or (in_flight < self.floor and needed <= self.ceiling)

    def effective(self, largest: int) -> int:
        """The budget as it is for batches of this size."""
        return max(self.budget, min(self.ceiling, self.floor * largest))


@dataclass(slots=True, eq=False)
class Window:
    """For map-style datasets: any worker may have any task."""

    limits: Limits
    in_order: bool = True
    waiting: deque[Task] = field(default_factory=deque)
    """Drawn and not dispatched. The iterating thread appends, the conductor takes."""
    unfinished: int = 0
    held: int = 0
    held_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    largest: int = 0
    """Size of the largest batch so far."""
    last_indices: Any = None
    """Indices of the batch that finished last."""
    _taken_back: list[tuple[int, Task]] = field(default_factory=list)
    _out: dict[int, dict[int, Task]] = field(default_factory=dict)
    _by_batch: dict[int, Task] = field(default_factory=dict)
    _held: dict[int, Finished] = field(default_factory=dict)
    next_batch: int = 0

    def next_task(self, worker: int, taken: int, taken_bytes: int) -> Task | None:
        """Grant `worker` a task, given how much the iterating thread has taken; None: not now."""
        if self._taken_back:
            task = heapq.heappop(self._taken_back)[1]
        else:
            in_flight = self.unfinished + self.held + self.delivered - taken
            finished_bytes = self.held_bytes + self.delivered_bytes - taken_bytes
            if not self.waiting or not self.limits.allow(in_flight, self.unfinished, finished_bytes, self.largest):
                return None
            task = self.waiting.popleft()
        task.worker = worker
        self._out.setdefault(worker, {})[task.batch] = task
        self._by_batch[task.batch] = task
        self.unfinished += 1
        return task

    def finish(self, worker: int, batch: int, result: Any, nbytes: int, worker_id: int = -1) -> list[Finished] | None:
        """A worker has finished a batch. Return what can be delivered now; None: nobody waits for this one."""
        task = self._out.get(worker, {}).pop(batch, None)
        if task is None:
            return None
        del self._by_batch[batch]
        self.unfinished -= 1
        self.largest = max(self.largest, nbytes)
        self.last_indices = task.indices
        finished = Finished(task, result, nbytes, worker_id)
        if not self.in_order:
            self.next_batch += 1
            self._deliver(finished)
            return [finished]
        self._held[batch] = finished
        self.held += 1
        self.held_bytes += nbytes
        ready: list[Finished] = []
        while (following := self._held.pop(self.next_batch, None)) is not None:
            self.held -= 1
            self.held_bytes -= following.nbytes
            self.next_batch += 1
            self._deliver(following)
            ready.append(following)
        return ready

    def take_back(self, worker: int, batches: list[int] | None = None) -> list[Task]:
        """Take unfinished tasks from a worker, so that others get them; all of its tasks by default."""
        out = self._out.get(worker, {})
        tasks = [out.pop(batch) for batch in (list(out) if batches is None else batches) if batch in out]
        for task in tasks:
            task.worker = -1
            del self._by_batch[task.batch]
            heapq.heappush(self._taken_back, (task.batch, task))
        self.unfinished -= len(tasks)
        return tasks

    def out(self, worker: int) -> list[Task]:
        return list(self._out.get(worker, {}).values())

    def waited_for(self) -> Task | None:
        """The task that holds up delivery, if a worker has it."""
        if self.in_order:
            return self._by_batch.get(self.next_batch)
        return min(self._by_batch.values(), key=lambda task: task.batch, default=None)

    def has_waiting(self) -> bool:
        return bool(self.waiting or self._taken_back)

    def drain(self) -> list[Finished]:
        """Empty the reorder buffer: nobody will take what is in it."""
        held = list(self._held.values())
        self._held.clear()
        return held

    def _deliver(self, finished: Finished) -> None:
        self.delivered += 1
        self.delivered_bytes += finished.nbytes
