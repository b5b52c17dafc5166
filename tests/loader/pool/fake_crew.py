"""A crew without a process or a thread: its workers do what they are told to, when a schedule says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.pool.crews.crew import Crew, Memory, Order, Progress, Worker
from penstock.pool.crews.reports import Arrived, Born, CrewLost, Died, Left, NotStarted, Up
from penstock.pool.inbox import Inbox
from penstock.pool.tasks import Batch
from penstock.pool.window import Task
from penstock.usage import Used

from tests.loader.pool.made import ended, made

SKIPPED = Batch(-1, -1, -1, None, None, 0, 0, 0, 0, 0, -1, 0)


class Given(NamedTuple):
    """A task, or a shard to adopt, as a worker has it."""

    epoch: int
    batch: int
    shard: int
    content: Any
    number: int
    adopted: bool = False


class FakeWorker(Worker):
    def __init__(self, crew: FakeCrew, key: int, number: int, order: Order) -> None:
        super().__init__(key, number)
        self.crew, self.order = crew, order
        self.given: deque[Given] = deque()
        self.at: Given | None = None
        self.positions: dict[int, int] = {}
        """Of the shards that it reads: how many batches each has given."""
        self.epoch = -1
        self.taken_up = 0
        self.skip_below = 0

    def give(self, epoch: int, tasks: list[Task]) -> None:
        self.given.extend(Given(epoch, task.batch, task.shard, task.indices, task.number) for task in tasks)

    def unread(self) -> int:
        """As if some of the batches that training has not taken were in memory of its own."""
        return min(self.crew.schedule.randint(0, 3), self.crew.untaken())

    def adopt(self, epoch: int, shard: int, state: Any) -> None:
        for each in [each for each in self.given if each.shard == shard]:
            self.given.remove(each)
            if not each.adopted:
                self._skip()
        self.given.append(Given(epoch, -1, shard, state, 1 << 60, adopted=True))

    def steer(self, order: Order) -> None:
        self.order = order

    def recall(self) -> None:
        if self.crew.schedule.random() < 0.3:
            self.start()  # at this very moment
        self.skip_below = self.dispatched

    def started(self) -> int:
        return self.taken_up

    def busy_for(self) -> int:
        return 0 if self.at is None else self.crew.schedule.choice([0, 10**9])

    def progress(self, now: int) -> Progress:
        raise NotImplementedError

    def used(self) -> Used:
        raise NotImplementedError

    def costs(self) -> list[int]:
        return [0] * 256

    def profile(self, rate: float, sink: Any) -> None:
        raise NotImplementedError

    def stack(self, patience: float) -> str:
        return f"at {self.at} for {patience}"

    # -- what the schedule has it do --------------------------------------------------------------------------

    def start(self) -> None:
        """Take the next task up, if that is allowed."""
        if not self.up or self.at is not None or self.order != Order.RUN or not self.given:
            return
        each = self.given.popleft()
        if each.epoch < self.crew.epoch or each.number < self.skip_below:
            if not each.adopted:
                self._skip()
            return
        if each.epoch != self.epoch:
            self.epoch, self.positions = each.epoch, {}
        if each.adopted:
            self.positions[each.shard] = each.content or 0
        else:
            self.taken_up += 1
            self.at = each

    def finish(self) -> None:
        """Answer the task under way."""
        each, self.at = self.at, None
        if each is None:
            return
        nbytes = self.crew.schedule.randint(0, 9)
        if each.shard < 0:
            batch = made(each.batch, each.content, nbytes, epoch=each.epoch)
        else:
            position = self.positions.get(each.shard, 0)
            if position >= self.crew.lengths[each.shard]:
                batch = ended(each.batch, each.shard, each.epoch, position)
            else:
                self.positions[each.shard] = position + 1
                value = (each.shard, position)
                batch = made(each.batch, value, nbytes, shard=each.shard, state=position + 1, epoch=each.epoch)
        self.crew.payloads.append(batch.payload)
        self.crew.inbox.put(Arrived(self, [batch]))

    def _skip(self) -> None:
        self.taken_up += 1
        self.crew.inbox.put(Arrived(self, [SKIPPED]))


class FakeCrew(Crew):
    name = "the crew"

    def __init__(self, inbox: Inbox, schedule: random.Random, lengths: list[int] | None = None) -> None:
        """`lengths`: of the shards."""
        self.inbox, self.schedule, self.lengths = inbox, schedule, lengths or []
        self.workers: list[FakeWorker] = []
        self.payloads: list[Any] = []
        """Of all batches that were made."""
        self.epoch = -1
        self.alive = False
        self.ended = False
        self.untaken: Callable[[], int] = lambda: 0
        """How many finished batches there are that training has not taken."""

    def revive(self, recipe: object) -> None:
        del recipe
        self.alive = True

    def grow(self, key: int, number: int, num_workers: int, epoch: int, order: Order) -> Worker | None:
        assert num_workers >= 1 and epoch == self.epoch
        assert number not in {worker.id for worker in self.workers}, "an id that somebody has"
        if not self.alive:
            return None
        self.workers.append(FakeWorker(self, key, number, order))
        return self.workers[-1]

    def begin_epoch(self, number: int, shared_seed: int | None) -> None:
        assert shared_seed is None
        self.epoch = number

    def limit(self, nbytes: int) -> None:
        assert nbytes > 0

    def memory(self) -> Memory:
        return Memory()

    def handles(self) -> list[Any]:
        return []

    def see_off(self) -> None:
        self.workers.clear()

    def lingers(self) -> bool:
        return False

    def end(self) -> None:
        self.ended = True

    # -- what the schedule has happen -------------------------------------------------------------------------

    def let(self, worker: FakeWorker) -> None:
        """A worker does the next thing that it has to do."""
        if not worker.pid:
            worker.pid = 1000 + worker.key
            self.inbox.put(Born(worker))
        elif not worker.up and worker.order != Order.LEAVE:
            self.inbox.put(Up(worker))
        elif worker.at is not None:
            worker.finish()
        elif worker.order == Order.LEAVE:
            self.workers.remove(worker)
            self.inbox.put(Left(worker, 0, worker.costs()))
        else:
            worker.start()

    def kill(self, worker: FakeWorker, *, blame: bool = True) -> None:
        self.workers.remove(worker)
        at = worker.at
        number = at.number if at is not None and blame else -1
        message = f"worker {worker.id} died"
        self.inbox.put(Died(worker, -9, message, -1 if at is None else at.batch, number, blame, worker.costs()))

    def lose(self) -> None:
        self.alive = False
        self.inbox.put(CrewLost(self, "the crew is lost"))
        for worker in list(self.workers):
            self.kill(worker, blame=False)

    def refuse(self, worker: FakeWorker) -> None:
        """A worker that was asked for cannot be made."""
        self.workers.remove(worker)
        self.inbox.put(NotStarted(worker, "no more processes"))
