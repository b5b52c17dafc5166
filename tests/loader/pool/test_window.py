"""The windows as plain objects, under schedules that no real pool would survive."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.pool.map_window import MapWindow
from penstock.pool.sharding import Shard, ShardedWindow
from penstock.pool.window import Limits, Task

from tests.loader.pool.made import ended, made, opened

thousands = settings(max_examples=1000, deadline=None)
schedules = st.integers(0, 2**40).map(random.Random)
"""What happens next, at every step. Not drawn step by step, which would make thousands of schedules take minutes."""


class Pool:
    """Workers and a training thread that do whatever the schedule says next."""

    def __init__(self, schedule: random.Random, window: Any, workers: int) -> None:
        self.schedule, self.window = schedule, window
        self.workers = list(range(workers))
        self.next_worker = workers
        self.ready: list[Any] = []
        self.taken: list[Any] = []
        self.taken_bytes = 0

    def choose(self, *steps: str) -> str:
        return self.schedule.choice(steps)

    def worker(self) -> int:
        return self.schedule.choice(self.workers)

    def ask(self, worker: int) -> Task | None:
        task: Task | None = self.window.next_task(worker, len(self.taken), self.taken_bytes)
        return task

    def take(self) -> None:
        if self.ready:
            finished = self.ready.pop(0)
            self.taken.append(finished)
            self.taken_bytes += finished.nbytes

    def finished_bytes(self) -> int:
        return int(self.window.held_bytes + self.window.delivered_bytes - self.taken_bytes)

    def in_flight(self) -> int:
        return int(self.window.unfinished + self.window.held + self.window.delivered - len(self.taken))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    budget = draw(st.integers(1, 60))
    ceiling = draw(st.one_of(st.just(budget), st.integers(budget, 200)))
    return Limits(draw(st.integers(1, 12)), budget, ceiling, draw(st.integers(1, 6)))


@thousands
@given(schedule=schedules, bounds=limits(), workers=st.integers(1, 4), count=st.integers(0, 14), in_order=st.booleans())
def test_every_batch_comes_once_and_in_order_whatever_happens(
    schedule: random.Random, bounds: Limits, workers: int, count: int, in_order: bool
) -> None:
    """Workers finish in any order, die with what they have, and answer after their death."""
    window = MapWindow(bounds, in_order)
    pool = Pool(schedule, window, workers)
    with_worker: dict[int, list[Task]] = {}
    late: list[tuple[int, int]] = []
    drawn = deaths = 0
    while len(pool.taken) < count:
        step = pool.choose("draw", "ask", "ask", "finish", "finish", "take", "die", "late")
        if step == "draw" and drawn < count:
            window.waiting.append(Task(drawn, [drawn]))
            drawn += 1
        elif step == "ask":
            worker = pool.worker()
            task = pool.ask(worker)
            if task is not None:
                assert task.worker == worker
                with_worker.setdefault(worker, []).append(task)
        elif step == "finish" and any(with_worker.values()):
            worker = schedule.choice([w for w, tasks in with_worker.items() if tasks])
            task = with_worker[worker].pop(schedule.randint(0, len(with_worker[worker]) - 1))
            ready = window.finish(worker, made(task.batch, task.indices, schedule.randint(0, 9)))
            assert ready is not None
            pool.ready.extend(ready)
        elif step == "take":
            pool.take()
        elif step == "die" and deaths < 5:
            deaths += 1
            worker = pool.worker()
            tasks = with_worker.pop(worker, [])
            assert {t.batch for t in window.take_back(worker)} == {t.batch for t in tasks}
            late += [(worker, task.batch) for task in tasks]
            pool.workers[pool.workers.index(worker)] = pool.next_worker
            pool.next_worker += 1
        elif step == "late" and late:
            worker, number = late.pop()
            assert window.finish(worker, made(number, "from the dead", 5)) is None
        assert pool.in_flight() <= max(bounds.tasks, 1)
        outstanding = [task for tasks in with_worker.values() for task in tasks]
        if drawn == count and not outstanding and not pool.ready and len(pool.taken) < count:
            # Training waits and no worker is busy: somebody must be given a task, or they wait for ever.
            task = pool.ask(pool.workers[0])
            assert task is not None, "deadlock"
            with_worker.setdefault(pool.workers[0], []).append(task)
    batches = [finished.task.batch for finished in pool.taken]
    assert sorted(batches) == list(range(count))
    assert not in_order or batches == list(range(count))
    assert all(opened(finished) == [finished.task.batch] for finished in pool.taken)
    assert (window.unfinished, window.held, window.held_bytes) == (0, 0, 0)
    assert window.waited_for() is None


@thousands
@given(
    schedule=schedules,
    workers=st.integers(1, 4),
    size=st.integers(1, 20),
    budget=st.integers(1, 80),
    count=st.integers(1, 14),
)
def test_batches_of_one_size_never_exceed_a_given_budget(
    schedule: random.Random, workers: int, size: int, budget: int, count: int
) -> None:
    window = MapWindow(Limits(256, budget, budget, 2 * workers))
    window.waiting.extend(Task(number, None) for number in range(count))
    pool = Pool(schedule, window, workers)
    out: list[tuple[int, Task]] = []
    while len(pool.taken) < count:
        step = pool.choose("ask", "ask", "finish", "take")
        if step == "ask":
            worker = pool.worker()
            task = pool.ask(worker)
            if task is not None:
                out.append((worker, task))
        elif step == "finish" and out:
            worker, task = out.pop(schedule.randint(0, len(out) - 1))
            pool.ready.extend(window.finish(worker, made(task.batch, None, size)) or [])
        elif step == "take":
            pool.take()
        assert pool.finished_bytes() <= max(budget, size), "more than the budget, or than the one batch that must be"


def test_the_window_keeps_every_worker_busy_behind_one_slow_batch() -> None:
    window = MapWindow(Limits(64, 10**6, 2 * 10**6, 4))
    window.waiting.extend(Task(number, None) for number in range(64))
    slow = window.next_task(0, 0, 0)
    assert slow is not None
    for number in range(1, 64):
        task = window.next_task(1, 0, 0)
        assert task is not None, "idle behind a slow batch"
        assert task.batch == number
        assert window.finish(1, made(task.batch, None, 1)) == []
    assert window.waited_for() is slow
    assert [f.task.batch for f in window.finish(0, made(0, None, 1)) or []] == list(range(64))


def dealt(lengths: list[int]) -> list[tuple[int, int]]:
    """The reference: one batch from every shard that has one, in turn."""
    return [(shard, n) for n in range(max(lengths, default=0)) for shard in range(len(lengths)) if n < lengths[shard]]


@thousands
@given(
    schedule=schedules,
    bounds=limits(),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    per_shard=st.integers(1, 4),
    in_order=st.booleans(),
)
def test_shards_are_dealt_like_cards(
    schedule: random.Random, bounds: Limits, lengths: list[int], per_shard: int, in_order: bool
) -> None:
    window = ShardedWindow(bounds, in_order, shards=[Shard(n, n) for n in range(len(lengths))], per_shard=per_shard)
    pool = Pool(schedule, window, len(lengths))
    asked: dict[int, list[Task]] = {worker: [] for worker in pool.workers}
    given_so_far = dict.fromkeys(pool.workers, 0)
    while not (window.is_over() and not pool.ready):
        step = pool.choose("ask", "ask", "answer", "answer", "take")
        if step == "take":
            pool.take()
        worker = pool.worker()
        if step == "ask" and (task := pool.ask(worker)) is not None:
            asked[task.shard].append(task)
        elif step == "answer" and asked[worker]:
            answer(window, pool, asked, given_so_far, lengths, worker, schedule.randint(0, 9))
        assert all(shard.ahead() <= per_shard for shard in window.shards)
        if not any(asked.values()) and not pool.ready and not window.is_over():
            tasks = [task for each in pool.workers if (task := pool.ask(each)) is not None]
            assert tasks, "deadlock"
            for task in tasks:
                asked[task.shard].append(task)
    seen = [opened(finished) for finished in pool.taken]
    assert sorted(seen) == sorted(dealt(lengths))
    if in_order:
        assert seen == dealt(lengths)
        assert [finished.task.batch for finished in pool.taken] == list(range(len(seen)))
    assert (window.unfinished, window.held, window.held_bytes) == (0, 0, 0)


def answer(
    window: ShardedWindow,
    pool: Pool,
    asked: dict[int, list[Task]],
    given_so_far: dict[int, int],
    lengths: list[int],
    worker: int,
    nbytes: int,
) -> None:
    """A worker answers the oldest task of its shard: with a batch, or with its end."""
    number = given_so_far[worker]
    task = asked[worker].pop(0)
    assert task.batch == number, "a shard's batches are asked for in order"
    if number == lengths[worker]:
        pool.ready.extend(window.end(worker, ended(number, worker)))
        asked[worker].clear()
        return
    given_so_far[worker] += 1
    ready = window.finish(worker, made(number, (worker, number), nbytes, shard=worker))
    assert ready is not None
    pool.ready.extend(ready)


@given(bounds=limits(), shards=st.integers(1, 4), per_shard=st.integers(1, 40))
def test_a_reader_that_takes_nothing_stops_endless_shards(bounds: Limits, shards: int, per_shard: int) -> None:
    window = ShardedWindow(bounds, shards=[Shard(n, n) for n in range(shards)], per_shard=per_shard)
    progress, steps = True, 0
    while progress:
        progress = False
        for worker in range(shards):
            task = window.next_task(worker, 0, 0)
            if task is not None:
                progress = True
                window.finish(worker, made(task.batch, None, 1, shard=task.shard))
        steps += 1
        assert steps < 500, "it never stops"
    assert window.held + window.delivered <= max(bounds.tasks, shards)
    assert window.held_bytes + window.delivered_bytes <= max(bounds.budget, bounds.ceiling) + 1
