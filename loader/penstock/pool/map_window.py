"""The window for map-style datasets: any worker may have any task. `window` has the argument why it is right."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..failures import WorkerLostError
from .window import Finished, Loss, Tally, Task

if TYPE_CHECKING:
    from .crews.crew import Worker
    from .tasks import Batch


@dataclass(slots=True, eq=False)
class MapWindow(Tally):
    """The window of a map-style dataset."""

    shared: ClassVar[bool] = True
    _taken_back: list[tuple[int, Task]] = field(default_factory=list)
    _out: dict[int, dict[int, Task]] = field(default_factory=dict)
    _by_batch: dict[int, Task] = field(default_factory=dict)
    _held: dict[int, Finished] = field(default_factory=dict)

    def owner(self, worker: Worker) -> int:
        """Its key: what a dead worker still sends must not be taken for its successor's."""
        return worker.key

    def next_task(self, worker: int, taken: int, taken_bytes: int) -> Task | None:
        if self._taken_back:
            task = heapq.heappop(self._taken_back)[1]
        elif self.waiting and self.has_room(taken, taken_bytes):
            task = self.waiting.popleft()
        else:
            return None
        task.worker = worker
        self._out.setdefault(worker, {})[task.batch] = task
        self._by_batch[task.batch] = task
        self.unfinished += 1
        return task

    def to_adopt(self, task: Task) -> None:
        """Tasks need no introduction."""

    def accept(self, worker: Worker, batch: Batch) -> list[Finished] | None:
        return self.finish(worker.key, batch)

    def finish(self, worker: int, batch: Batch) -> list[Finished] | None:
        """A worker has finished a batch. Return what can be delivered now; None: nobody waits for this one."""
        task = self._out.get(worker, {}).pop(batch.batch, None)
        return None if task is None else self._finished(task, batch, None)

    def take_back(self, worker: int, batches: list[int] | None = None) -> list[Task]:
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

    def lose(self, worker: int, message: str, at: int, blame: bool, max_retries: int) -> Loss:  # noqa: ARG002
        """Its tasks go to others; one that has ended too many workers is given up."""
        tasks, ready = self.out(worker), list[Finished]()
        task = next((task for task in tasks if task.number == at >= 0), None)
        if task is not None:
            message += f", at batch {task.batch}"
            task.crashes += 1
            if task.crashes > max_retries:
                text = f"{message}, sample indices {task.indices!r}"
                if max_retries:
                    text += f"; the batch has ended {task.crashes} workers"
                del self._out[worker][task.batch]
                ready = self._finished(task, None, WorkerLostError(text))
        self.take_back(worker)
        return Loss(ready, bool(tasks), message)

    def waited_for(self) -> Task | None:
        if self.in_order:
            return self._by_batch.get(self.next_batch)
        return min(self._by_batch.values(), key=lambda task: task.batch, default=None)

    def has_waiting(self, worker: int | None = None) -> bool:  # noqa: ARG002
        return bool(self.waiting or self._taken_back)

    def was_taken_back(self) -> bool:
        return bool(self._taken_back)

    def drain(self) -> list[Finished]:
        held = list(self._held.values())
        self._held.clear()
        return held

    def is_over(self) -> bool:
        return False

    def births(self, workers: int) -> int:
        return workers

    def why_fixed(self) -> str:
        return ""

    def spread(self, workers: Sequence[int]) -> None:
        """Whoever is free takes the next task."""

    def positions(self) -> tuple[Any, ...]:
        return ()

    def _finished(self, task: Task, batch: Batch | None, error: WorkerLostError | None) -> list[Finished]:
        del self._by_batch[task.batch]
        self.unfinished -= 1
        self.last_indices = task.indices
        payload = None if batch is None else batch.payload
        finished = Finished(task, batch, error, 0 if payload is None else payload.size)
        self._held[task.batch] = finished
        self._hold(finished)
        return self._release()

    def _pop(self, in_order: bool) -> Finished | None:
        if in_order:
            return self._held.pop(self.next_batch, None)
        return self._held.popitem()[1] if self._held else None
