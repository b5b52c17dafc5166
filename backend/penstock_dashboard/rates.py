"""From counters to rates: the one place where differences between snapshots are taken.

A `Meter` belongs to one incarnation of one loader. Counters of workers end with the worker, so their
differences are taken worker by worker (by pid) and summed into a total of our own that only grows.
"""

from __future__ import annotations

from array import array
from collections import deque

import msgspec
from penstock.insight.occupation import OccupationMeter, Sums
from penstock.protocol import Rates, Snapshot

WINDOW = 10.0
"""Seconds over which the overview's rates are taken."""

SPACING = 0.15
"""Seconds between two moments that are kept for them; a loader usually reports every 0.2 s."""

Depths = tuple[float, ...]
"""The fields of `Rates` that are no differences, in their order, up to `workers`."""

FIELDS: tuple[str, ...] = Rates.__struct_fields__


class Totals(msgspec.Struct, frozen=True):
    """What grows, at one snapshot."""

    at: float
    batches: int
    samples: int
    bytes: int
    times: tuple[int, ...]
    pin_bytes: int
    busy_us: int


class Meter:
    def __init__(self) -> None:
        self._pids = array("Q")
        self._worker_processor = array("Q")
        self._worker_queued = array("Q")
        self._processor_ms = self._queued_ms = 0
        self._occupation = OccupationMeter()
        self._worker_busy = array("Q")
        """Of the workers of the last snapshot, as numbers side by side: there may be a thousand."""
        self._busy_us = 0
        self._allowed = 0.0
        self._last: Totals | None = None
        self._depths: Depths = (0.0,) * 8
        self._recent: deque[Totals] = deque()
        """For the last ten seconds, `SPACING` apart: so many at the most, whatever the clock does."""

    def take(self, snapshot: Snapshot) -> Rates:
        """Rates since the snapshot before; of the first, only what can be seen at one moment."""
        totals = self._totals(snapshot)
        before = self._last or totals
        if totals.at < before.at:  # the clock was set back: start over rather than divide by nonsense
            self._recent.clear()
            before = totals
        self._last = totals
        self._depths = depths(snapshot)
        if len(self._recent) > 1 and totals.at - self._recent[-2].at < SPACING:
            self._recent[-1] = totals
        else:
            self._recent.append(totals)
        while len(self._recent) > 2 and self._recent[1].at <= totals.at - WINDOW:
            self._recent.popleft()
        return self._occupied(between(before, totals, self._depths), snapshot.processors.allowed)

    def recent(self) -> Rates:
        """Rates over the last 10 s."""
        if not self._recent:
            return Rates()
        return self._occupied(between(self._recent[0], self._recent[-1], self._depths), self._allowed)

    def _occupied(self, rates: Rates, allowed: float) -> Rates:
        self._allowed = allowed
        processor, queued, blocked = self._occupation.workers
        return msgspec.structs.replace(
            rates,
            processor=processor,
            queued=queued,
            blocked=blocked,
            others=self._occupation.others,
            allowed=allowed,
        )

    def _totals(self, snapshot: Snapshot) -> Totals:
        longest = int(1e6 * (snapshot.at - self._last.at)) if self._last is not None else 0
        known = dict(zip(self._pids, self._worker_busy, strict=True))
        for worker in snapshot.workers:
            now = worker.fetch_us + worker.collate_us + worker.send_us
            # The first snapshot only sets the mark; a worker born since then counts from zero. One that was not seen
            # for a while counts for the time since the last snapshot at the most.
            before = known.get(worker.pid, 0 if self._last is not None else now)
            self._busy_us += min(max(0, now - before), max(0, longest))
        self._occupy(snapshot)
        self._pids = array("Q", [w.pid for w in snapshot.workers])
        self._worker_busy = array("Q", [w.fetch_us + w.collate_us + w.send_us for w in snapshot.workers])
        t = snapshot.times
        return Totals(
            at=snapshot.at,
            batches=snapshot.batches,
            samples=snapshot.samples,
            bytes=snapshot.bytes,
            times=(
                t.compute_us,
                t.starvation_us,
                t.reorder_stall_us,
                t.pin_wait_us,
                t.paused_us,
                t.startup_us,
                t.sampler_us,
            ),
            pin_bytes=snapshot.pin.bytes,
            busy_us=self._busy_us,
        )

    def _occupy(self, snapshot: Snapshot) -> None:
        """The same for what the scheduler tells, which comes a second at a time."""
        known = dict(zip(self._pids, zip(self._worker_processor, self._worker_queued, strict=True), strict=True))
        for worker in snapshot.workers:
            processor, queued = known.get(worker.pid, (0, 0) if self._last else (worker.cpu_ms, worker.queued_ms))
            self._processor_ms += max(0, worker.cpu_ms - processor)
            self._queued_ms += max(0, worker.queued_ms - queued)
        self._worker_processor = array("Q", [w.cpu_ms for w in snapshot.workers])
        self._worker_queued = array("Q", [w.queued_ms for w in snapshot.workers])
        sums = Sums(self._busy_us, self._processor_ms, self._queued_ms, snapshot.processors.others_ms)
        self._occupation.take(snapshot.at, sums)


def depths(snapshot: Snapshot) -> Depths:
    """What is no difference: how full things are at one moment."""
    queues = snapshot.queues
    living = [worker for worker in snapshot.workers if worker.state != "dead"]
    return (
        float(sum(worker.rss for worker in living)),
        float(queues.index),
        float(queues.in_flight),
        float(queues.reorder),
        float(queues.data),
        float(queues.slots_bytes),
        float(queues.finished_bytes),
        float(len(living)),
    )


def between(before: Totals, after: Totals, depths: Depths) -> Rates:
    """Rates from one moment to a later one, with the depths at the later one."""
    seconds = after.at - before.at
    per_second = 1.0 / seconds if seconds > 1e-6 else 0.0
    spent = [max(0, now - then) for now, then in zip(after.times, before.times, strict=True)]
    whole = sum(spent)
    share = 1.0 / whole if whole else 0.0
    compute, starvation, reorder_stall, pin_wait, paused, startup, sampler = (part * share for part in spent)
    rss, index, in_flight, reorder, data, slots_bytes, finished_bytes, workers = depths
    return Rates(
        batches=max(0, after.batches - before.batches) * per_second,
        samples=max(0, after.samples - before.samples) * per_second,
        bytes=max(0, after.bytes - before.bytes) * per_second,
        compute=compute,
        starvation=starvation,
        reorder_stall=reorder_stall,
        pin_wait=pin_wait,
        paused=paused,
        startup=startup,
        pin_bytes=max(0, after.pin_bytes - before.pin_bytes) * per_second,
        busy=(after.busy_us - before.busy_us) * 1e-6 * per_second,
        rss=rss,
        index=index,
        in_flight=in_flight,
        reorder=reorder,
        data=data,
        slots_bytes=slots_bytes,
        finished_bytes=finished_bytes,
        workers=workers,
        sampler=sampler,
    )


def brief(rates: Rates) -> Rates:
    """The same to four digits: half the bytes on the wire, and more than a row of the overview shows."""
    return Rates(*[float(f"{value:.4g}") if value else 0.0 for value in msgspec.structs.astuple(rates)])


def alive(snapshot: Snapshot | None) -> int:
    """Workers that are not dead."""
    return 0 if snapshot is None else sum(worker.state != "dead" for worker in snapshot.workers)
