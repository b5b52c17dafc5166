"""The window for iterable-style datasets: shards, each a stream that one worker at a time reads. No IO.

The order is that of dealing cards: one batch from every shard that has not ended, in turn, as torch has it. The
argument is that of `window`, with a shard in place of the whole: a shard's batches are asked for in order and finish
in order; a batch is accepted only from the worker that has the shard now, and only the next one, so a shard that moved,
even away and back, cannot be read twice or out of turn; and when training has taken everything, the shard whose turn it
is may always be asked for one batch, so the window never waits for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..failures import WorkerLostError
from .window import Finished, Loss, Tally, Task

if TYPE_CHECKING:
    from .crews.crew import Worker
    from .tasks import Batch


@dataclass(slots=True, eq=False)
class Shard:
    """What the window knows of one shard."""

    number: int
    worker: int
    """The worker that reads it."""
    state: Any = None
    """Its position after the last batch that finished, if the dataset can save it."""
    adopted: bool = False
    """Its worker has yet to be told to read it, from `state` on."""
    asked: int = 0
    """Batches asked of it so far."""
    out: dict[int, Task] = field(default_factory=dict)
    finished: deque[Finished] = field(default_factory=deque)
    ended: bool = False
    given: int = 0
    """Batches that it has given."""
    crashes: int = 0
    """Workers that died while they read it, since its last batch."""

    def ahead(self) -> int:
        return len(self.out) + len(self.finished)

    def forget(self) -> int:
        """Void what was asked and not answered; return how many tasks that were."""
        count = len(self.out)
        self.asked -= count
        self.out.clear()
        return count


@dataclass(slots=True, eq=False)
class ShardedWindow(Tally):
    """The window of an iterable-style dataset: each shard's batches come from the worker that reads it."""

    shared: ClassVar[bool] = False
    shards: list[Shard] = field(kw_only=True)
    per_shard: int = 32
    """Batches that a shard may be ahead."""
    turn: int = 0
    """The shard that gives the next batch, if it has not ended."""
    stateful: bool = False
    """The dataset can save its position: it says so, or a batch came with one."""
    restartable: bool = True
    """Every shard that has given a batch has told its position."""

    def owner(self, worker: Worker) -> int:
        """Its id: whoever comes in its place has its shards."""
        return worker.id

    def next_task(self, worker: int, taken: int, taken_bytes: int) -> Task | None:
        """Ask one of the worker's shards for a batch: the one that is needed, else the least ahead."""
        expected = self._expected()
        shard: Shard | None
        if (
            expected is not None
            and expected.worker == worker
            and not expected.ended
            and not expected.ahead()
            and self.delivered == taken
        ):
            shard = expected  # training waits for it, so no limit applies
        else:
            shard = min(
                (s for s in self.shards if s.worker == worker and not s.ended and s.ahead() < self.per_shard),
                key=Shard.ahead,
                default=None,
            )
            if shard is None or not self.has_room(taken, taken_bytes):
                return None
        task = Task(shard.asked, None, shard.number, worker)
        shard.asked += 1
        shard.out[task.batch] = task
        self.unfinished += 1
        return task

    def to_adopt(self, task: Task) -> tuple[int, Any] | None:
        shard = self.shards[task.shard]
        if not shard.adopted:
            return None
        shard.adopted = False
        return shard.number, shard.state

    def accept(self, worker: Worker, batch: Batch) -> list[Finished] | None:
        if batch.is_end():
            return self.end(worker.id, batch)
        return self.finish(worker.id, batch)

    def finish(self, worker: int, batch: Batch) -> list[Finished] | None:
        """A shard gave its next batch. Return what can be delivered now; None: nobody waits for this one."""
        shard = self.shards[batch.shard]
        # An answer from before the shard moved away and back may come late, and out of turn.
        if shard.worker != worker or batch.batch != shard.given or batch.batch not in shard.out:
            return None
        task = shard.out.pop(batch.batch)
        self.unfinished -= 1
        shard.state = batch.state
        shard.given += 1
        shard.crashes = 0
        self.stateful = self.stateful or batch.state is not None
        self.restartable = self.restartable and batch.state is not None
        return self._finished(shard, Finished(task, batch, None, 0 if batch.payload is None else batch.payload.size))

    def end(self, worker: int, batch: Batch) -> list[Finished]:
        """A shard, asked for this batch, has no more: what was asked of it is void."""
        shard = self.shards[batch.shard]
        if shard.worker != worker or batch.batch != shard.given or batch.batch not in shard.out:
            return []
        shard.ended = True
        shard.state = batch.state
        self.unfinished -= shard.forget()
        return self._release()

    def take_back(self, worker: int, batches: list[int] | None = None) -> list[Task]:  # noqa: ARG002
        """Nobody else can do them."""
        return []

    def lose(self, worker: int, message: str, at: int, blame: bool, max_retries: int) -> Loss:  # noqa: ARG002
        """What a worker knew of its place in a shard died with it, unless that was saved."""
        restartable, ready = self.restartable, list[Finished]()
        for shard in self.of(worker):
            shard.crashes += blame
            if restartable and shard.crashes <= max_retries:
                self.restart(shard)
                continue
            self.unfinished -= shard.forget()
            shard.ended = True
            error = WorkerLostError(f"{message}, at batch {shard.given} of its shard")
            ready += self._finished(shard, Finished(Task(shard.asked, None, shard.number), None, error))
        return Loss(ready, restartable, message if restartable else "")

    def rebalance(self, workers: Sequence[int]) -> None:
        """Spread the shards that have not ended over these workers, moving as few as possible."""
        loads = {worker: [s for s in self.shards if s.worker == worker and not s.ended] for worker in workers}
        if not loads:
            return
        for shard in self.shards:
            if not shard.ended and shard.worker not in loads:
                self._move(shard, min(loads, key=lambda worker: len(loads[worker])), loads)
        while True:
            least = min(loads, key=lambda worker: len(loads[worker]))
            most = max(loads, key=lambda worker: len(loads[worker]))
            if len(loads[most]) - len(loads[least]) < 2:
                return
            self._move(loads[most].pop(), least, loads)

    def restart(self, shard: Shard) -> None:
        """Have a shard read again, by whoever has its worker's number, from its last known position on."""
        self.unfinished -= shard.forget()
        shard.adopted = True

    def of(self, worker: int) -> list[Shard]:
        """The worker's shards that have not ended."""
        return [shard for shard in self.shards if shard.worker == worker and not shard.ended]

    def out(self, worker: int) -> list[Task]:
        return [task for shard in self.of(worker) for task in shard.out.values()]

    def waited_for(self) -> Task | None:
        shard = self._expected()
        return shard.out[min(shard.out)] if shard is not None and shard.out else None

    def has_waiting(self, worker: int | None = None) -> bool:
        """A shard that has not ended may always be asked for more."""
        return worker is None or bool(self.of(worker))

    def was_taken_back(self) -> bool:
        return False

    def drain(self) -> list[Finished]:
        held = [finished for shard in self.shards for finished in shard.finished]
        for shard in self.shards:
            shard.finished.clear()
        return held

    def is_over(self) -> bool:
        return all(shard.ended and not shard.finished for shard in self.shards)

    def births(self, workers: int) -> int:  # noqa: ARG002
        """The number of shards: a dataset splits itself by it."""
        return len(self.shards)

    def why_fixed(self) -> str:
        if self._movable():
            return ""
        return "the shards of this iterable-style dataset are fixed for the epoch: it cannot save its position"

    def spread(self, workers: Sequence[int]) -> None:
        if self._movable() or not any(shard.asked for shard in self.shards):
            self.rebalance(workers)

    def positions(self) -> tuple[Any, ...]:
        return tuple(shard.state for shard in self.shards)

    def _movable(self) -> bool:
        """May shards move to other workers?"""
        return self.stateful and self.restartable

    def _move(self, shard: Shard, worker: int, loads: dict[int, list[Shard]]) -> None:
        self.restart(shard)
        shard.worker = worker
        loads[worker].append(shard)

    def _expected(self) -> Shard | None:
        """The shard whose turn it is."""
        for step in range(len(self.shards)):
            shard = self.shards[(self.turn + step) % len(self.shards)]
            if shard.finished or not shard.ended:
                return shard
        return None

    def _finished(self, shard: Shard, finished: Finished) -> list[Finished]:
        shard.finished.append(finished)
        self._hold(finished)
        return self._release()

    def _pop(self, in_order: bool) -> Finished | None:
        shard = self._expected() if in_order else next((shard for shard in self.shards if shard.finished), None)
        if shard is None or not shard.finished:
            return None
        if in_order:
            self.turn = (shard.number + 1) % len(self.shards)
        finished = shard.finished.popleft()
        finished.task.batch = self.next_batch
        return finished
