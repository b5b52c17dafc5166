"""What each worker did over the last seconds, from its counters. For those who look at one loader."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..protocol import Snapshot, Worker, WorkerRates
from .numbers import busy_us

WINDOW = 5.0
"""Seconds."""
MOST = 64
"""Moments that are kept at the most, whatever clocks do."""


class Counters(NamedTuple):
    """A worker's, at one moment."""

    batches: int
    fetch_us: int
    collate_us: int
    send_us: int
    busy_us: int
    cpu_ms: int
    queued_ms: int
    sent_kib: int


class Moment(NamedTuple):
    """The counters of all workers, and of the pin stage, in one snapshot."""

    at: float
    workers: dict[tuple[int, int], Counters]
    """By number and process."""
    pin_us: int
    pin_batches: int


class WorkerMeter:
    """From counters to rates per worker, over a window that slides with the snapshots."""

    def __init__(self) -> None:
        self._past: deque[Moment] = deque(maxlen=MOST)

    def take(self, snapshot: Snapshot) -> None:
        """The next snapshot; one that was taken before is ignored."""
        past = self._past
        if past and snapshot.at <= past[-1].at:
            if snapshot.at == past[-1].at:
                return
            past.clear()
        workers = {(worker.id, worker.pid): _counters(worker) for worker in snapshot.workers}
        past.append(Moment(snapshot.at, workers, snapshot.pin.us, snapshot.pin.batches))
        while len(past) > 2 and snapshot.at - past[0].at > WINDOW:
            past.popleft()

    def rates(self, snapshot: Snapshot) -> list[WorkerRates]:
        """Of the workers of the snapshot that was taken last, in their order."""
        return [self._of(worker, snapshot) for worker in snapshot.workers]

    def pin(self) -> tuple[float, float | None]:
        """Share of the time in which the pin stage was at work, and µs a batch there."""
        if not self._past or self._past[-1].at <= self._past[0].at:
            return 0.0, None
        first, last = self._past[0], self._past[-1]
        us, batches = max(0, last.pin_us - first.pin_us), last.pin_batches - first.pin_batches
        return min(1.0, us / 1e6 / (last.at - first.at)), us / batches if batches > 0 else None

    def _of(self, worker: Worker, snapshot: Snapshot) -> WorkerRates:
        which = worker.id, worker.pid
        before = next((each for each in self._past if which in each.workers and each.at < snapshot.at), None)
        if before is None:
            return WorkerRates()
        seconds = snapshot.at - before.at
        done = Counters(*(now - then for now, then in zip(_counters(worker), before.workers[which], strict=True)))
        if not snapshot.knows("workers.fetch_us"):
            return WorkerRates(_brief(done.batches / seconds))
        parts = (done.fetch_us, done.collate_us, done.send_us)
        fetch, collate, send = (_brief(part / done.batches) if done.batches > 0 else None for part in parts)
        busy = min(1.0, max(0.0, done.busy_us / 1e6 / seconds))
        processor, queued = (max(0, each) / 1e3 / seconds for each in (done.cpu_ms, done.queued_ms))
        told, scheduled = snapshot.knows("workers.cpu_ms"), snapshot.knows("workers.queued_ms")
        return WorkerRates(
            _brief(done.batches / seconds),
            fetch,
            collate,
            send,
            _brief(busy),
            _brief(processor) if told else None,
            _brief(queued) if scheduled else None,
            _brief(max(0.0, busy - processor - queued)) if told and scheduled else None,
            _brief(max(0, done.sent_kib) * 1024 / seconds),
        )


def _counters(worker: Worker) -> Counters:
    return Counters(
        worker.batches,
        worker.fetch_us,
        worker.collate_us,
        worker.send_us,
        busy_us(worker),
        worker.cpu_ms,
        worker.queued_ms,
        worker.sent_kib,
    )


def _brief(value: float) -> float:
    """To four digits: nobody reads more, and there may be a thousand workers."""
    return float(f"{value:.4g}")
