"""The conductor with its dispatcher, arrivals and losses, and crews that do whatever a schedule says: no process, no
thread, thousands of schedules. Each example is one pool from its beginning to its end."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from penstock.control import Ticket
from penstock.pool.conductor import Conductor
from penstock.pool.depth import Depth
from penstock.pool.epoch import Epoch
from penstock.pool.inbox import Inbox
from penstock.pool.map_window import MapWindow
from penstock.pool.requests import BeginEpoch, ChangeWorkers, GoOn, Hold, LeaveEpoch, Revived
from penstock.pool.sharding import Shard, ShardedWindow
from penstock.pool.window import Limits, Task, Window
from penstock.telemetry.ledger import Ledger
from penstock.telemetry.observer import PoolObserver
from penstock.telemetry.times import TimeAccount

from tests.loader.pool.fake_crew import FakeCrew
from tests.loader.pool.made import opened
from tests.loader.pool.test_window import dealt, limits

schedules = st.integers(0, 2**40).map(random.Random)
many = settings(max_examples=1000, deadline=None, phases=[Phase.generate])
"""A schedule is made from a number, which does not get simpler by being smaller."""
PATIENCE = 5000
"""Turns after which a pool that does not come to its end hangs."""


class Trial:
    """One pool and the training that takes from it, turn by turn."""

    def __init__(self, schedule: random.Random, workers: int, crews: int = 1, retries: int = 10**6) -> None:
        self.schedule = schedule
        self.inbox = Inbox()
        self.crews = [FakeCrew(self.inbox, schedule) for _ in range(crews)]
        self.ledger = Ledger()
        self.conductor = Conductor(
            self.crews,
            self.inbox,
            workers,
            16,
            retries,
            Depth(schedule.choice([None, 3])),
            None,
            lambda _: None,
            PoolObserver(self.ledger, 1, 0, 10**18),
            self,
        )
        for crew in self.crews:
            crew.revive(None)
            crew.untaken = self.untaken
        self.epoch: Any = None
        self.got: list[Any] = []
        self.deaths = 0

    def untaken(self) -> int:
        """Finished batches that training has not taken."""
        window = self.epoch.window
        return int(window.held + window.delivered - self.epoch.taken)

    def begin(self, number: int, window: Window, workers: int) -> None:
        self.epoch = Epoch(number, window, TimeAccount())
        self.got = []
        self.conductor.request(BeginEpoch(self.epoch, workers))
        self.step()

    def step(self) -> None:
        """One turn of the conductor, which never sleeps here."""
        self.conductor.doorbell.ring()
        self.conductor._step()

    def take(self) -> None:
        """Training takes a batch, if there is one, and starts crews again that were lost."""
        while self.conductor.lost:
            crew: Any = self.conductor.lost.popleft()
            crew.revive(None)
            self.conductor.request(Revived())
        if self.epoch.ready:
            finished = self.epoch.ready.popleft()
            self.epoch.taken += 1
            self.epoch.taken_bytes += finished.nbytes
            self.got.append(finished.error if finished.batch is None else opened(finished))

    def workers(self) -> list[Any]:
        return [worker for crew in self.crews for worker in crew.workers]

    def disturb(self, most_deaths: int = 6, resizes: bool = True) -> None:
        """Something happens. `resizes`: a change of the number of workers may be it."""
        what = self.schedule.choice(["work"] * 12 + ["take"] * 4 + ["resize", "hold", "go on", "die", "die", "lose"])
        workers, request = self.workers(), self.conductor.request
        if what == "work" and workers:
            worker = self.schedule.choice(workers)
            worker.crew.let(worker)
        elif what == "take":
            self.take()
        elif what == "resize" and resizes:
            request(ChangeWorkers(self.schedule.randint(1, 5), Ticket("resize")))
        elif what == "hold":
            request(Hold(None, None))
        elif what == "go on":
            request(GoOn(None))
        elif what == "die" and workers and self.deaths < most_deaths:
            self.deaths += 1
            worker = self.schedule.choice(workers)
            worker.crew.kill(worker)
        elif what == "lose" and self.deaths < most_deaths:
            self.deaths += 1
            self.schedule.choice(self.crews).lose()
        if self.schedule.random() < 0.7:
            self.step()

    def finish(self, is_over: Any) -> None:
        """From now on nothing disturbs: everybody does what there is to do."""
        self.conductor.request(GoOn(None))
        for _ in range(PATIENCE):
            if is_over():
                return
            self.take()
            self.step()
            for worker in self.workers():
                worker.crew.let(worker)
        raise AssertionError(f"it hangs: {self.got}, {self.epoch.window}, {[vars(w) for w in self.workers()]}")

    def close(self) -> None:
        self.conductor._shut_down()
        assert all(crew.ended for crew in self.crews)
        assert self.conductor.dismissed.is_set()
        assert len(self.conductor.roster) == 0


@many
@given(
    schedule=schedules,
    bounds=limits(),
    workers=st.integers(1, 4),
    crews=st.integers(1, 2),
    count=st.integers(0, 14),
    in_order=st.booleans(),
    epochs=st.integers(1, 3),
)
def test_every_batch_comes_once_and_in_order_whatever_happens_to_workers(
    schedule: random.Random, bounds: Limits, workers: int, crews: int, count: int, in_order: bool, epochs: int
) -> None:
    trial = Trial(schedule, workers, crews)
    for number in range(epochs):
        trial.begin(number, MapWindow(bounds, in_order), schedule.randint(1, 4))
        drawn = 0
        left_early = number < epochs - 1 and schedule.random() < 0.5
        for _ in range(schedule.randint(0, 120)):
            if drawn < count and schedule.random() < 0.3:
                trial.epoch.window.waiting.append(Task(drawn, [number, drawn]))
                drawn += 1
            trial.disturb()
        if left_early:
            trial.conductor.request(LeaveEpoch(trial.epoch))
            expected = trial.got
        else:
            trial.epoch.window.waiting.extend(Task(each, [number, each]) for each in range(drawn, count))
            trial.finish(lambda: len(trial.got) == count)
            expected = [[number, each] for each in range(count)]
        assert sorted(trial.got) == sorted(expected)
        assert not in_order or trial.got == [[number, each] for each in range(len(trial.got))]
        window = trial.epoch.window
        if not left_early:
            assert (window.unfinished, window.held, window.held_bytes) == (0, 0, 0)
    trial.close()


@many
@given(
    schedule=schedules,
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    bounds=limits(),
    crews=st.integers(1, 2),
    in_order=st.booleans(),
)
def test_shards_that_move_are_read_once_and_dealt_in_order(
    schedule: random.Random, lengths: list[int], bounds: Limits, crews: int, in_order: bool
) -> None:
    trial = Trial(schedule, len(lengths), crews)
    for crew in trial.crews:
        crew.lengths = lengths
    shards = [Shard(number, number) for number in range(len(lengths))]
    window = ShardedWindow(bounds, in_order, shards=shards, per_shard=schedule.randint(1, 4), stateful=True)
    trial.begin(0, window, len(lengths))
    for _ in range(schedule.randint(0, 200)):
        trial.disturb()
    trial.finish(trial.epoch.is_over)
    assert sorted(trial.got) == sorted(dealt(lengths))
    assert not in_order or trial.got == dealt(lengths)
    trial.close()


@many
@given(schedule=schedules, workers=st.integers(1, 3), retries=st.integers(0, 2), fatal=st.integers(0, 9))
def test_a_batch_that_ends_every_worker_is_an_error_in_its_place(
    schedule: random.Random, workers: int, retries: int, fatal: int
) -> None:
    trial = Trial(schedule, workers, retries=retries)
    trial.begin(0, MapWindow(Limits(9, 10**6, 10**6, 9)), workers)
    trial.epoch.window.waiting.extend(Task(number, number) for number in range(10))
    struck = 0
    for _ in range(PATIENCE):
        trial.take()
        trial.step()
        if len(trial.got) == 10:
            break
        for worker in trial.workers():
            if worker.at is not None and worker.at.batch == fatal:
                worker.crew.kill(worker)
                struck += 1
            elif schedule.random() < 0.7:
                worker.crew.let(worker)
    assert [each for each in trial.got if isinstance(each, int)] == [each for each in range(10) if each != fatal]
    assert f"at batch {fatal}, sample indices {fatal}" in str(trial.got[fatal])
    assert struck == retries + 1
    assert trial.ledger.recoveries == struck
    trial.close()


@given(schedule=schedules, retries=st.integers(0, 2), refused=st.booleans())
def test_workers_that_cannot_be_made_end_the_epoch_and_not_the_pool(
    schedule: random.Random, retries: int, refused: bool
) -> None:
    trial = Trial(schedule, 2, retries=retries)
    trial.begin(0, MapWindow(Limits(9, 10**6, 10**6, 9)), 2)
    trial.epoch.window.waiting.extend(Task(number, number) for number in range(4))
    for _ in range(100):
        trial.step()
        for worker in trial.workers()[:1]:
            if refused:
                trial.crews[0].refuse(worker)
            else:
                trial.crews[0].kill(worker)
    assert str(trial.epoch.error).endswith("no more processes" if refused else "died, before its first batch")
    assert len(trial.workers()) <= 1, "it goes on asking for more"
    trial.begin(1, MapWindow(Limits(9, 10**6, 10**6, 9)), 2)
    trial.epoch.window.waiting.extend(Task(number, number) for number in range(4))
    trial.finish(lambda: trial.got == [0, 1, 2, 3])
    trial.close()
