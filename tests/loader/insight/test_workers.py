"""What each worker did over the last seconds."""

from __future__ import annotations

import pytest
from penstock.insight.workers import WorkerMeter
from penstock.protocol import PinStage, Snapshot, Worker, WorkerRates


def at(moment: float, *workers: Worker, pin: PinStage | None = None, unknown: list[str] | None = None) -> Snapshot:
    return Snapshot(0, moment, "running", workers=list(workers), pin=pin or PinStage(), unknown=unknown or [])


def test_rates_come_from_counters_by_process() -> None:
    meter = WorkerMeter()
    meter.take(at(10.0, Worker(0, 1, "idle", batches=10), pin=PinStage(batches=1, us=0)))
    now = Worker(0, 1, "idle", batches=30, fetch_us=1_000_000, cpu_ms=500, queued_ms=200, sent_kib=100)
    later = at(12.0, now, Worker(1, 2, "idle"), pin=PinStage(batches=5, us=1_000_000))
    meter.take(later)
    found, fresh = meter.rates(later)
    assert found == WorkerRates(10.0, 50_000.0, 0.0, 0.0, 0.5, 0.25, 0.1, 0.15, 51_200.0)
    assert fresh == WorkerRates(), "of one that was not there before nothing is known"
    assert meter.pin() == (0.5, 250_000.0)
    other = at(13.0, Worker(0, 99, "idle", batches=3))
    meter.take(other)
    assert meter.rates(other) == [WorkerRates()], "another process in the same place"


def test_what_is_not_seen_is_not_said() -> None:
    meter = WorkerMeter()
    for moment in (1.0, 2.0):
        snapshot = at(moment, Worker(0, 1, "idle", batches=int(moment)), unknown=["workers.fetch_us", "workers.cpu_ms"])
        meter.take(snapshot)
    assert meter.rates(snapshot) == [WorkerRates(batches=1.0)]


def test_the_window_slides() -> None:
    meter = WorkerMeter()
    for tick in range(200):
        snapshot = at(tick / 5, Worker(0, 1, "idle", batches=max(0, tick - 150)))
        meter.take(snapshot)
    assert meter.rates(snapshot)[0].batches == pytest.approx(5.0)
