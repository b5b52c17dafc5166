"""From counters to rates."""

from __future__ import annotations

import pytest
from penstock.insight.rates import Meter
from penstock.protocol import Processors, Rates, Times, Worker

from tests.backend.harness import make_snapshot


def test_rates_are_differences_over_the_loaders_own_clock() -> None:
    meter = Meter()
    assert meter.take(make_snapshot(0, at=100.0)).batches == 0.0
    rates = meter.take(make_snapshot(5, at=101.0))
    assert rates.batches == pytest.approx(10.0)
    assert rates.samples == pytest.approx(640.0)
    assert rates.busy == pytest.approx(2 * 0.75)
    assert rates.workers == 2


def test_the_shares_add_up_to_one() -> None:
    meter = Meter()
    meter.take(make_snapshot(0, at=1.0, times=Times()))
    rates = meter.take(make_snapshot(1, at=2.0, times=Times(1, 2, 3, 3, 4, 5, 2)))
    shares = (
        rates.compute,
        rates.starvation,
        rates.reorder_stall,
        rates.pin_wait,
        rates.paused,
        rates.startup,
        rates.sampler,
    )
    assert sum(shares) == pytest.approx(1.0)
    assert rates.startup == pytest.approx(0.25)


def test_a_worker_that_goes_takes_nothing_back_and_one_that_comes_adds_only_its_own() -> None:
    def worker(pid: int, us: int) -> Worker:
        return Worker(0, pid, "fetching", fetch_us=us)

    meter = Meter()
    meter.take(make_snapshot(0, at=1.0).__class__(0, 1.0, "running", workers=[worker(1, 9_000_000)]))
    rates = meter.take(make_snapshot(1).__class__(1, 2.0, "running", workers=[worker(2, 250_000)]))
    assert rates.busy == pytest.approx(0.25)


@pytest.mark.parametrize("at", [100.0, 99.0, 100.0 + 1e-12])
def test_a_clock_that_stands_still_or_goes_back_gives_no_nonsense(at: float) -> None:
    meter = Meter()
    meter.take(make_snapshot(0, at=100.0))
    rates = meter.take(make_snapshot(5, at=at))
    assert rates.batches == 0.0


def test_the_overview_looks_back_ten_seconds() -> None:
    meter = Meter()
    for step in range(100):
        snapshot = make_snapshot(step, at=step * 0.2, batches=0 if step < 50 else (step - 49) * 4)
        meter.take(snapshot)
    assert meter.recent().batches == pytest.approx(20.0, rel=0.05)


def test_a_worker_that_was_not_seen_for_a_while_was_not_busy_more_than_all_the_time() -> None:
    meter = Meter()
    seen = Worker(0, 7, "idle", fetch_us=60_000_000)
    for step, workers in enumerate(([seen], [], [seen])):
        rates = meter.take(make_snapshot(step).__class__(step, 10.0 + step / 5, "running", workers=workers))
    assert rates.busy <= 1.001


def test_why_workers_are_busy_is_told_by_process_and_once_a_second() -> None:
    """Of two workers one is replaced; the scheduler's sums come with every fifth snapshot."""
    meter, rates = Meter(), Rates()
    for step in range(60):
        at, second = step * 0.2, step // 5
        pids = (1, 2) if step < 30 else (1, 3)
        workers = [
            Worker(
                number,
                pid,
                "fetching",
                fetch_us=int((at - (6.0 if pid == 3 else 0.0)) * 1e6),
                cpu_ms=600 * (second - (6 if pid == 3 else 0)),
                queued_ms=100 * (second - (6 if pid == 3 else 0)),
            )
            for number, pid in enumerate(pids)
        ]
        processors = Processors(4.0, second * 750, 0)
        rates = meter.take(make_snapshot(step).__class__(step, at, "running", workers=workers, processors=processors))
    assert (rates.processor, rates.queued, rates.blocked) == pytest.approx((1.2, 0.2, 0.6), abs=0.02)
    assert (rates.others, rates.allowed) == pytest.approx((0.75, 4.0), abs=0.01)
    assert meter.recent().blocked == rates.blocked
