"""The window: which task is dispatched next, and which finished batch is delivered next. Plain objects, no IO.

Why nothing is lost, doubled, out of order or stuck:

1. Tasks are numbered without gaps as they are drawn. A task is in exactly one of four places: waiting (drawn, or
   taken back from a worker that did not finish it), out (with one worker), held (finished, in the reorder buffer) or
   delivered. `finish` accepts a batch only from the worker that has it out, so a batch that was given to another
   worker after a crash cannot be delivered twice.
2. `_release` delivers batch i only when all batches before i are delivered (or at once, if order was not asked for).
3. Tasks go out in the order of their numbers, those taken back first. So the batch that holds up delivery is always
   out or first in line, and `next_task` grants a batch that was taken back, or the only one in flight, whatever the
   memory budget says. So the window never waits for itself.
4. The finished bytes stay within the budget, because a task is granted only if all finished batches, and all
   unfinished ones taken at the size of the largest seen, would still fit.

How many tasks may be in flight is found in `depth`.

There are two kinds: `map_window`, of which the argument above speaks, and `sharding`, for iterable-style datasets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from ..failures import Failure
    from ..tolerating import Bad
    from .crews.crew import Worker
    from .tasks import Batch


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
    without: dict[int, Bad] | None = None
    """Places of samples that are not to be tried, because workers hung or died there, and what is told of each."""


@dataclass(slots=True, eq=False)
class Finished:
    """A task with what became of it."""

    task: Task
    batch: Batch | None
    """What a worker answered; None: whoever had it is lost."""
    error: BaseException | None = None
    """Why nobody can make it."""
    nbytes: int = 0
    """Bytes of memory that it takes until training has it."""

    @property
    def failure(self) -> Failure | BaseException | None:
        """What went wrong with it."""
        return self.error if self.batch is None else self.batch.failure

    def discard(self) -> None:
        """Nobody will look at it."""
        if self.batch is not None:
            self.batch.discard()


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
        return in_flight == 0 or (in_flight < self.tasks and self.fits(in_flight, unfinished, finished_bytes, largest))

    def fits(self, in_flight: int, unfinished: int, finished_bytes: int, largest: int) -> bool:
        """Is there memory for one more, whatever their number?"""
        if largest == 0:
            # Nothing is known of the size yet; a budget that may stretch allows what torch would.
            return self.ceiling > self.budget and in_flight < self.floor
        needed = finished_bytes + (unfinished + 1) * largest
        return needed <= self.budget or (in_flight < self.floor and needed <= self.ceiling)

    def effective(self, largest: int) -> int:
        """The budget as it is for batches of this size."""
        return max(self.budget, min(self.ceiling, self.floor * largest))


class Loss(NamedTuple):
    """What became of the tasks or shards of a worker that died."""

    ready: list[Finished]
    """What can be delivered now: errors in place of what nobody can make."""
    retried: bool
    """Its tasks or shards go to others."""
    recovered: str
    """What training may be told; empty if nothing was recovered."""


class Window(Protocol):
    """What the pool asks of a window. Only the conductor's thread calls it, unless a method says otherwise.

    Windows know a worker by a number, its `owner`.
    """

    shared: ClassVar[bool]
    """Any worker may have any task; else each has its own, and nobody else can do them."""
    limits: Limits
    waiting: deque[Task]
    """Drawn and not dispatched. The iterating thread appends, the conductor takes. Of shards there are none."""
    unfinished: int
    held: int
    held_bytes: int
    delivered: int
    delivered_bytes: int
    largest: int
    last_indices: Any
    next_batch: int

    def owner(self, worker: Worker) -> int:
        """The number by which the window knows a worker."""

    def next_task(self, worker: int, taken: int, taken_bytes: int) -> Task | None:
        """Grant a worker a task, given how much the iterating thread has taken; None: not now."""

    def to_adopt(self, task: Task) -> tuple[int, Any] | None:
        """The shard, and its state, that a worker must be told of before it is given this task; once for each."""

    def accept(self, worker: Worker, batch: Batch) -> list[Finished] | None:
        """A worker has answered a task. Return what can be delivered now; None: nobody waits for this one."""

    def take_back(self, worker: int, batches: list[int] | None = None) -> list[Task]:
        """Take unfinished tasks from a worker, so that others get them; all of its tasks by default."""

    def out(self, worker: int) -> list[Task]:
        """The tasks that a worker has."""

    def lose(self, worker: int, message: str, at: int, blame: bool, max_retries: int) -> Loss:
        """A worker is dead. It was at its task number `at` (-1: at none); `blame`: it may have died of that."""

    def waited_for(self) -> Task | None:
        """The task that holds up delivery, if a worker has it. The iterating thread may ask, too."""

    def has_room(self, taken: int, taken_bytes: int) -> bool:
        """May one more task go out, given how much the iterating thread has taken?"""

    def has_memory(self, taken: int, taken_bytes: int) -> bool:
        """Is there memory for one more batch, whatever the number of tasks? False while no size is known."""

    def has_waiting(self, worker: int | None = None) -> bool:
        """Is there a task that no worker has, and this one could?"""

    def was_taken_back(self) -> bool:
        """Is there one that was taken back, for which training may wait?"""

    def drain(self) -> list[Finished]:
        """Empty the reorder buffer: nobody will take what is in it."""

    def is_over(self) -> bool:
        """Will nothing more be delivered? Only shards know; else the iterating thread does."""

    def births(self, workers: int) -> int:
        """What a new worker is told of how many there are, given how many there should be."""

    def why_fixed(self) -> str:
        """Why the number of workers cannot change within the epoch; empty if it can."""

    def spread(self, workers: Sequence[int]) -> None:
        """These are the ids of all workers now: see to it that each has something to do."""

    def positions(self) -> tuple[Any, ...]:
        """The states of all shards, after the last batch of each."""


@dataclass(slots=True, eq=False)
class Tally:
    """What both kinds of window count, and the order in which they deliver."""

    limits: Limits
    in_order: bool = True
    waiting: deque[Task] = field(default_factory=deque)
    next_batch: int = 0
    """The batch that is delivered next."""
    unfinished: int = 0
    """Tasks that workers have."""
    held: int = 0
    """Batches in the reorder buffer."""
    held_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    largest: int = 0
    """Size of the largest batch so far."""
    last_indices: Any = None
    """Indices of the batch that finished last; of a shard there are none."""

    def has_room(self, taken: int, taken_bytes: int) -> bool:
        """May one more task go out, given how much the iterating thread has taken?"""
        in_flight = self.unfinished + self.held + self.delivered - taken
        finished_bytes = self.held_bytes + self.delivered_bytes - taken_bytes
        if not self.largest and self.held + self.delivered:
            # Batches that do not tell their size: as many as torch has.
            return in_flight == 0 or in_flight < min(self.limits.floor, self.limits.tasks)
        return self.limits.allow(in_flight, self.unfinished, finished_bytes, self.largest)

    def has_memory(self, taken: int, taken_bytes: int) -> bool:
        """Is there memory for one more batch, whatever the number of tasks? False while no size is known."""
        in_flight = self.unfinished + self.held + self.delivered - taken
        finished_bytes = self.held_bytes + self.delivered_bytes - taken_bytes
        return self.largest > 0 and self.limits.fits(in_flight, self.unfinished, finished_bytes, self.largest)

    def _hold(self, finished: Finished) -> None:
        """A batch goes into the reorder buffer."""
        nbytes = finished.nbytes
        self.held += 1
        self.held_bytes += nbytes
        self.largest = max(self.largest, nbytes)

    def _release(self) -> list[Finished]:
        """Let everything out of the reorder buffer whose turn it is; without an order, that is everything."""
        ready: list[Finished] = []
        while (finished := self._pop(self.in_order)) is not None:
            self.next_batch += 1
            self.held -= 1
            self.held_bytes -= finished.nbytes
            self.delivered += 1
            self.delivered_bytes += finished.nbytes
            ready.append(finished)
        return ready

    def _pop(self, in_order: bool) -> Finished | None:
        """Take the batch from the reorder buffer whose turn it is, or any; None: it is not there."""
        raise NotImplementedError
