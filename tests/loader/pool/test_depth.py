"""How deep the window is, in a simulated pool with a clock of its own: real window, real depth, no process."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.pool.depth import LOOKAHEAD, NEGLIGIBLE, PATIENCE, TORCHS, Depth, most_tasks
from penstock.pool.map_window import MapWindow
from penstock.pool.window import Limits, Task

from tests.loader.pool.made import made

MS, MB = 1_000_000, 1 << 20
Cost = Callable[[int], int]
"""Number of a batch → ns."""


class World:
    """Workers that make batches, and training that takes them one after another. Tasks never come to an end."""

    def __init__(self, workers: int, cost: Cost, step: Cost, size: int, depth: Depth, budget: int = 512 * MB) -> None:
        self.workers, self.cost, self.step, self.size, self.depth = workers, cost, step, size, depth
        self.window = MapWindow(Limits(depth.tasks(workers), budget, budget, TORCHS * workers))
        self.numbers = count()
        self.now = 1
        self.free = list(range(workers))
        self.at_work: list[tuple[int, int, int]] = []
        """(when it is finished, worker, batch)"""
        self.ready = self.taken = self.waited = self.deepest = 0
        self.wanted = 1
        """When training asks for the next batch."""

    def run(self, batches: int) -> World:
        """Until training has taken so many more."""
        goal = self.taken + batches
        while self.taken < goal:
            while len(self.window.waiting) < LOOKAHEAD:
                self.window.waiting.append(Task(next(self.numbers), None))
            self._hand_out()
            self._pass_time()
        return self

    def rate(self) -> float:
        """Batches a second."""
        return self.taken / self.now * 1e9

    def _hand_out(self) -> None:
        while True:
            self.window.limits.tasks = tasks = self.depth.tasks(self.workers)
            self.deepest = max(self.deepest, tasks)
            while self.free and (task := self.window.next_task(self.free[-1], self.taken, self.taken * self.size)):
                heapq.heappush(self.at_work, (self.now + self.cost(task.batch), self.free.pop(), task.batch))
            room = self.window.has_memory(self.taken, self.taken * self.size)
            self.depth.look(
                self.now,
                self.workers,
                waits=self.now >= self.wanted and not self.ready and self.taken > 0,
                held_back=len(self.free) if room else 0,
                batch_ns=sum(map(self.cost, range(100))) / 100,
                largest=self.window.largest,
                budget=self.window.limits.effective(self.window.largest),
                finished=self.window.held + self.window.delivered - self.taken,
            )
            if self.depth.tasks(self.workers) <= tasks:
                return

    def _pass_time(self) -> None:
        """Until the next thing happens."""
        if self.ready and self.wanted <= self.now:
            self.ready -= 1
            self.wanted = self.now + self.step(self.taken)
            self.taken += 1
            return
        finished = self.at_work[0][0] if self.at_work else 1 << 62
        before, self.now = self.now, min(finished, self.wanted) if self.wanted > self.now else finished
        self.waited += self.now - max(before, self.wanted) if self.wanted < self.now and not self.ready else 0
        while self.at_work and self.at_work[0][0] <= self.now:
            _, worker, batch = heapq.heappop(self.at_work)
            self.free.append(worker)
            self.ready += len(self.window.finish(worker, made(batch, None, self.size)) or ())


def steady(ns: int) -> Cost:
    return lambda _: ns


def skewed(batch: int) -> int:
    return 100 * MS if batch % 50 == 0 else 4 * MS


def bursts(batch: int) -> int:
    """Training takes ten batches at once, and then works on them."""
    return 600 * MS if batch % 10 == 9 else 0


@pytest.mark.parametrize("step", [0, 3 * MS, 9 * MS, 30 * MS])
@pytest.mark.parametrize("size", [100, 38 * MB])
def test_no_more_than_torch_has_where_more_would_not_help(step: int, size: int) -> None:
    """Workers that are always busy, or training that never waits."""
    world = World(2, steady(10 * MS), steady(step), size, Depth()).run(2000)
    assert world.deepest == 4
    assert world.depth.reason(2) == "start"


def test_slow_batches_are_ridden_out_and_the_window_is_found_in_a_moment() -> None:
    deep = World(4, skewed, steady(0), 100, Depth(128)).run(3000)
    world = World(4, skewed, steady(0), 100, Depth()).run(3000)
    assert world.rate() > 0.97 * deep.rate() > 1.3 * World(4, skewed, steady(0), 100, Depth(2)).run(3000).rate()
    assert world.depth.reason(4) in ("grown", "most")


def test_where_batches_are_large_the_window_grows_by_doubling_and_no_further_than_it_helps() -> None:
    deep = World(4, skewed, steady(0), 8 * MB, Depth(128)).run(3000)
    world = World(4, skewed, steady(0), 8 * MB, Depth()).run(3000)
    assert world.rate() > 0.9 * deep.rate()
    assert 8 < world.deepest <= 64
    assert world.deepest & (world.deepest - 1) == 0
    assert world.depth.reason(4) in ("grown", "memory")


def test_training_that_takes_many_at_once_finds_them_made() -> None:
    small = World(2, steady(50 * MS), bursts, MB, Depth(2)).run(400)
    world = World(2, steady(50 * MS), bursts, MB, Depth()).run(400)
    assert 10 <= world.deepest <= 32
    assert world.waited < 0.3 * small.waited


def test_one_hiccup_in_a_long_time_is_not_worth_much_memory() -> None:
    """1 % of the time could be spared: with batches of which 13 fill the budget that is too little."""

    def rarely(batch: int) -> int:
        return 200 * MS if batch % 2000 == 1999 else 10 * MS

    assert World(2, rarely, steady(4 * MS), 38 * MB, Depth()).run(6000).deepest == 4
    assert World(2, rarely, steady(4 * MS), 100, Depth()).run(6000).deepest > 8


def test_it_never_takes_more_than_the_budget_and_says_so() -> None:
    world = World(4, skewed, steady(0), 8 * MB, Depth(), budget=100 * MB).run(2000)
    assert world.deepest == 12
    assert world.depth.reason(4) == "memory"


def test_it_shrinks_when_less_will_do_and_ever_more_slowly_if_it_was_wrong() -> None:
    world = World(2, steady(50 * MS), bursts, MB, Depth()).run(100)
    grown = world.depth.tasks(2)
    assert grown > 8
    world.step = steady(100 * MS)
    world.run(2000)
    assert world.depth.tasks(2) == 4
    assert world.depth.reason(2) == "start"
    world.step = bursts
    world.run(100)
    assert world.depth.tasks(2) == grown
    before = world.now
    world.step = steady(100 * MS)
    while world.depth.tasks(2) == grown:
        world.run(1)
    assert world.now - before > 2 * PATIENCE


def test_what_is_given_holds() -> None:
    world = World(4, skewed, bursts, 100, Depth(3)).run(300)
    assert world.deepest == 12
    assert world.depth.reason(4) == "given"


def test_workers_on_other_machines_have_as_many_tasks_as_memory_allows() -> None:
    depth = Depth()
    depth.far = True
    assert depth.tasks(2) == most_tasks(None, 2) and depth.reason(2) == "memory"
    depth.look(1, 2, waits=False, held_back=0, batch_ns=MS, largest=40 * MB, budget=MB, finished=100)
    assert depth.tasks(2) == most_tasks(None, 2), "nothing that is seen here makes it smaller"
    depth.given = 3
    assert depth.tasks(2) == 6


def test_time_at_rest_counts_for_nothing() -> None:
    depth = Depth()
    for now in (1, 10**9, 2 * 10**9):
        depth.rest()
        depth.look(now, 2, waits=True, held_back=1, batch_ns=MS, largest=100, budget=MB, finished=3)
    assert depth.tasks(2) == 4


@settings(max_examples=300, deadline=None)
@given(
    schedule=st.integers(0, 2**40).map(random.Random),
    workers=st.integers(1, 6),
    size=st.sampled_from([1, 50_000, 3 * MB, 40 * MB]),
    budget=st.sampled_from([10 * MB, 100 * MB, 512 * MB]),
)
def test_under_any_times_it_stays_within_its_bounds(
    schedule: random.Random, workers: int, size: int, budget: int
) -> None:
    costs = [schedule.choice([0, 1, MS, 5 * MS, 300 * MS]) for _ in range(97)]
    steps = [schedule.choice([0, 0, MS, 20 * MS, 500 * MS]) for _ in range(89)]
    world = World(workers, lambda batch: costs[batch % 97] + 1, lambda batch: steps[batch % 89], size, Depth(), budget)
    for _ in range(20):
        world.run(10)
        tasks = world.depth.tasks(workers)
        assert TORCHS * workers <= tasks <= most_tasks(None, workers)
        assert tasks == TORCHS * workers or tasks * size <= max(budget, NEGLIGIBLE)
        assert (tasks == TORCHS * workers) == (world.depth.reason(workers) == "start") or tasks * 2 * size > budget
