"""Why workers are busy: what the scheduler's sums come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.occupation import OccupationMeter, Sums, occupation

amounts = st.floats(0, 1e9)


@given(busy=amounts, processor=amounts, queued=amounts)
def test_the_parts_add_up_to_the_time_at_batches_and_none_is_negative(
    busy: float, processor: float, queued: float
) -> None:
    parts = occupation(busy, processor, queued)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(busy)
    assert parts.processor == min(processor, busy)


@given(
    steps=st.lists(
        st.tuples(st.floats(0.02, 0.4), st.integers(0, 16), st.integers(0, 16), st.integers(0, 64)), min_size=30
    )
)
def test_sums_that_come_once_a_second_give_steady_rates(steps: list[tuple[float, int, int, int]]) -> None:
    """However often snapshots are taken: a loader asks the scheduler once a second, and tells the same in between."""
    meter, now, read_at = OccupationMeter(), 0.0, -1.0
    told = Sums()
    for step, *_ in steps:
        now += step
        if now - read_at >= 1.0:
            read_at = now
            told = Sums(0, int(now * 1500), int(now * 500), int(now * 250))
        meter.take(now, told._replace(busy_us=int(now * 4e6)))
    if now > 3:
        assert meter.workers.processor == pytest.approx(1.5, abs=0.01)
        assert meter.workers.queued == pytest.approx(0.5, abs=0.01)
        assert meter.workers.blocked == pytest.approx(2.0, abs=0.02)
        assert meter.others == pytest.approx(0.25, abs=0.01)


def test_workers_that_only_wait_are_blocked_though_no_sum_changes() -> None:
    meter = OccupationMeter()
    for step in range(40):
        meter.take(step * 0.2, Sums(busy_us=int(step * 0.2 * 3e6)))
    assert meter.workers == pytest.approx((0, 0, 3))


def test_a_clock_that_was_set_back_begins_anew() -> None:
    meter = OccupationMeter()
    meter.take(100.0, Sums(0, 0, 0, 0))
    meter.take(50.0, Sums(4_000_000, 900, 0, 0))
    meter.take(51.0, Sums(5_000_000, 1400, 250, 0))
    assert meter.workers == pytest.approx((0.5, 0.25, 0.25))
