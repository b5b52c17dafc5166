"""The simulated pool: what holds for every load."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.simulation import Pool, Work, simulate

times = st.floats(0.0001, 0.1)
works = st.lists(st.builds(Work, times, times), min_size=1, max_size=12)
NO_TIME = [Work(0.0, 0.0)]
ROUNDING = 1 + 1e-9


def mean(work: list[Work]) -> float:
    return sum(map(sum, work)) / len(work)


@given(works)
def test_one_worker_takes_the_sum_of_its_batches(work: list[Work]) -> None:
    rounds = 20 * len(work)
    outcome = simulate(Pool(1), work, NO_TIME, rounds)
    slowest = max(map(sum, work))
    assert outcome.batches == pytest.approx(1 / mean(work), rel=slowest * len(work) / (rounds * mean(work)) + 1e-6)
    assert outcome.waiting == pytest.approx(1.0)


@given(works, works, st.integers(1, 12), st.floats(0.5, 8), st.floats(1, 8))
def test_no_more_is_given_than_any_part_can_give(
    work: list[Work], training: list[Work], workers: int, processors: float, channels: float
) -> None:
    batches = 40 * len(work)
    pool = Pool(workers, processors, channels=channels)
    outcome = simulate(pool, work, training, batches)
    slack = 1 + (2 * workers + len(work) + len(training) + 1) / batches * max(map(sum, work)) / mean(work)
    assert outcome.batches <= ROUNDING * slack * workers / mean(work)
    assert 0.0 <= outcome.waiting <= 1.0
    # Never more than training itself can take: exactly, over the batches that count.
    at_most = 1 / min(map(sum, training))
    assert outcome.batches <= at_most * ROUNDING
    assert outcome.batches * mean(training) * (1 - 1e-9) <= slack * max(map(sum, training)) / mean(training)


@given(times, st.integers(1, 16), st.floats(1, 16))
def test_batches_that_are_all_alike_share_evenly(time: float, workers: int, share: float) -> None:
    """So many workers make so many times as much, until what they share is full."""
    batches = 30 * workers
    blocked = simulate(Pool(workers, channels=share), [Work(time, 0.0)], NO_TIME, batches)
    running = simulate(Pool(workers, processors=share), [Work(0.0, time)], NO_TIME, batches)
    for outcome in (blocked, running):
        assert outcome.batches == pytest.approx(min(workers, share) / time, rel=0.1)


def test_workers_that_compute_for_a_moment_at_times_wait_beside_a_free_processor() -> None:
    """As many as there are processors never do; nor do those that always run."""
    moments, always = [Work(0.003, 0.002)], [Work(0.0, 0.005)]
    for workers, work, apart in ((2, moments, 0.01), (8, always, 0.01)):
        many = simulate(Pool(workers, processors=2.0), work, NO_TIME, 400).batches
        assert many == pytest.approx(min(workers / mean(work), 2.0 / work[0].processor), rel=apart)
    busy = simulate(Pool(4, processors=2.0), moments, NO_TIME, 400).batches
    assert busy < 0.98 * 4 / mean(moments)


@given(works, st.integers(1, 8))
def test_more_workers_never_make_less_where_nothing_is_shared(work: list[Work], workers: int) -> None:
    batches = 60 * len(work)
    few, more = (simulate(Pool(n), work, NO_TIME, batches).batches for n in (workers, 2 * workers))
    assert more >= few * 0.95


@given(works, st.integers(1, 8), st.booleans())
def test_a_window_of_one_task_is_as_good_as_one_worker(work: list[Work], workers: int, by_bytes: bool) -> None:
    pool = Pool(workers, bytes=1.0) if by_bytes else Pool(workers, tasks=1)
    one = simulate(Pool(1, tasks=1), work, NO_TIME, 20 * len(work) + 4 * workers)
    narrow = simulate(pool, work, NO_TIME, 20 * len(work) + 4 * workers)
    assert narrow.batches == pytest.approx(one.batches, rel=0.35)
    assert narrow.batches <= 1.35 / mean(work)


def test_one_slow_batch_holds_others_back_only_in_order_and_only_in_a_small_window() -> None:
    work = [Work(0.5 if place == 50 else 0.01, 0.0) for place in range(100)]
    in_order, wide, free = (
        simulate(pool, work, NO_TIME, 1000).batches
        for pool in (Pool(4, tasks=8), Pool(4, tasks=512), Pool(4, tasks=8, in_order=False))
    )
    assert in_order < 0.75 * wide
    assert free > 1.1 * in_order


def test_every_shard_has_its_turn_so_one_slow_worker_slows_all() -> None:
    work = [Work(0.04 if place % 4 == 0 else 0.01, 0.0) for place in range(400)]
    sharded = simulate(Pool(4, sharded=True), work, NO_TIME, 400)
    assert sharded.batches == pytest.approx(4 / 0.04, rel=0.1)
    assert simulate(Pool(4), work, NO_TIME, 400).batches > 1.5 * sharded.batches


def test_others_take_their_share_of_the_processors() -> None:
    alone = simulate(Pool(4, processors=2), [Work(0.0, 0.01)], NO_TIME, 200).batches
    beside = simulate(Pool(4, processors=2, others=4), [Work(0.0, 0.01)], NO_TIME, 200).batches
    assert beside == pytest.approx(alone / 2, rel=0.05)


def test_what_takes_no_time_has_no_end() -> None:
    assert simulate(Pool(2), NO_TIME, NO_TIME, 100).batches == math.inf
