"""From counters to rates: the one place where differences between snapshots are taken.

A `Meter` belongs to one incarnation of one loader. Counters of workers end with the worker, so their differences are
taken worker by worker (by pid) and summed into totals of our own that only grow.
"""

from __future__ import annotations

from array import array
from collections import deque

import msgspec

from ..protocol import Rates, Snapshot, Worker
from .numbers import KINDS, NUMBERS, busy_us
from .occupation import MOST, OccupationMeter, Sums

WINDOW = 10.0
"""Seconds over which the overview's rates are taken, and over which the judge looks back."""

SPACING = 0.15
"""Seconds between two moments that are kept for them; a loader usually reports every 0.2 s."""

FIELDS: tuple[str, ...] = Rates.__struct_fields__

_COUNTED = [(number.name, number.total, number.scale) for number in NUMBERS if number.total is not None]
_WORKED = [(number.name, number.of_worker, number.scale) for number in NUMBERS if number.of_worker is not None]
_DEPTHS = [(number.name, number.depth) for number in NUMBERS if number.depth is not None]
_TIMES = [f"{kind.name}_us" for kind in KINDS]


class Totals(msgspec.Struct, frozen=True, gc=False):
    """What grows, at one snapshot."""

    at: float
    counted: tuple[float, ...]
    """Counters of the loader, in the order of `NUMBERS`."""
    worked: tuple[int, ...]
    """Counters of all workers together, in the order of `NUMBERS`."""
    times: tuple[int, ...]
    """Time of each kind, µs."""
    busy_us: int = 0
    """Time in which workers had a task in hand, all of them together."""
    made: int = 0
    """Batches that workers finished."""
    told: Sums = Sums()
    """What the scheduler tells, as of the last time that it was asked: about once a second."""
    told_at: float = 0.0
    """When that was."""
    allowed: float = 0.0
    """Processors that may be used; 0: neither that nor why workers are busy is known."""

    @property
    def yielded(self) -> int:
        return int(self.counted[0])


class Meter:
    def __init__(self) -> None:
        self._pids = array("Q")
        self._before = array("Q")
        """Counters of the workers of the last snapshot, as numbers side by side: there may be a thousand."""
        self._sums = [0] * (len(_WORKED) + 4)
        self._occupation = OccupationMeter()
        self._told = Sums()
        self._told_at = 0.0
        self._depths: dict[str, float] = {}
        self._recent: deque[Totals] = deque()
        """For the last ten seconds, `SPACING` apart: so many at the most, whatever the clock does."""
        self.last: Totals | None = None

    def take(self, snapshot: Snapshot) -> Rates:
        """Rates since the snapshot before; of the first, only what can be seen at one moment."""
        totals = self._totals(snapshot)
        before = self.last or totals
        if totals.at < before.at:  # the clock was set back: start over rather than divide by nonsense
            self._recent.clear()
            before = totals
        self.last = totals
        self._depths = {name: float(depth(snapshot)) for name, depth in _DEPTHS}
        if len(self._recent) > 1 and totals.at - self._recent[-2].at < SPACING:
            self._recent[-1] = totals
        else:
            self._recent.append(totals)
        while len(self._recent) > 2 and self._recent[1].at <= totals.at - WINDOW:
            self._recent.popleft()
        return self._occupied(between(before, totals, self._depths))

    def recent(self) -> Rates:
        """Rates over the last 10 s."""
        if not self._recent:
            return Rates()
        return self._occupied(between(self._recent[0], self._recent[-1], self._depths))

    def _occupied(self, rates: Rates) -> Rates:
        processor, queued, blocked = self._occupation.workers
        others = self._occupation.others
        return msgspec.structs.replace(rates, processor=processor, queued=queued, blocked=blocked, others=others)

    def _totals(self, snapshot: Snapshot) -> Totals:
        self._count_workers(snapshot)
        *worked, busy, made, processor, queued = self._sums
        sums = Sums(busy, processor, queued, snapshot.processors.others_ms)
        self._occupation.take(snapshot.at, sums)
        if sums[1:] != self._told[1:] or not 0 <= snapshot.at - self._told_at < MOST:
            self._told, self._told_at = sums, snapshot.at
        times = snapshot.times
        return Totals(
            snapshot.at,
            tuple([total(snapshot) for _, total, _ in _COUNTED]),
            tuple(worked),
            tuple([getattr(times, name) for name in _TIMES]),
            busy,
            made,
            self._told,
            self._told_at,
            snapshot.processors.allowed if snapshot.knows("workers.queued_ms") else 0.0,
        )

    def _count_workers(self, snapshot: Snapshot) -> None:
        first = self.last is None
        longest = 0 if self.last is None else max(0, int(1e6 * (snapshot.at - self.last.at)))
        width, sums, before = len(self._sums), self._sums, self._before
        places = {pid: place * width for place, pid in enumerate(self._pids)}
        after = array("Q")
        for worker in snapshot.workers:
            now = _counters(worker)
            after.extend(now)
            # The first snapshot only sets the mark; a worker born since then counts from zero. One that was not seen
            # for a while was busy for the time since the last snapshot at the most.
            place = places.get(worker.pid)
            known = before[place : place + width] if place is not None else now if first else (0,) * width
            for number, (new, old) in enumerate(zip(now, known, strict=True)):
                grown = max(0, new - old)
                sums[number] += grown if number > width - 4 else min(grown, longest)
        self._pids, self._before = array("Q", [worker.pid for worker in snapshot.workers]), after


def _counters(worker: Worker) -> list[int]:
    worked = [of_worker(worker) for _, of_worker, _ in _WORKED]
    return [*worked, busy_us(worker), worker.batches, worker.cpu_ms, worker.queued_ms]


def between(before: Totals, after: Totals, depths: dict[str, float]) -> Rates:
    """Rates from one moment to a later one, with the depths at the later one."""
    seconds = after.at - before.at
    per_second = 1.0 / seconds if seconds > 1e-6 else 0.0
    values = dict(depths)
    for (name, _, scale), now, then in zip(_COUNTED, after.counted, before.counted, strict=True):
        values[name] = max(0, now - then) * scale * per_second
    for (name, _, scale), now, then in zip(_WORKED, after.worked, before.worked, strict=True):
        values[name] = (now - then) * scale * per_second
    spent = [max(0, now - then) for now, then in zip(after.times, before.times, strict=True)]
    whole = sum(spent)
    share = 1.0 / whole if whole else 0.0
    for kind, part in zip(KINDS, spent, strict=True):
        values[kind.name] = part * share
    return Rates(**values)


def brief(rates: Rates) -> Rates:
    """The same to four digits: half the bytes on the wire, and more than a row of the overview shows."""
    return Rates(*[float(f"{value:.4g}") if value else 0.0 for value in msgspec.structs.astuple(rates)])
