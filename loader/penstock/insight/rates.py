"""From counters to rates: the one place where differences between snapshots are taken.

A `Meter` belongs to one incarnation of one loader. Counters of workers end with the worker, so their differences are
taken worker by worker (by number and pid) and summed into totals of our own that only grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter

import msgspec
from msgspec import UNSET

from ..protocol import Glances, MachineRates, Rates, Snapshot, Worker
from .elsewhere import Traffic, TrafficMeter
from .numbers import KINDS, NUMBERS, busy_us
from .occupation import MOST, OccupationMeter, Sums

WINDOW = 10.0
"""Seconds over which the overview's rates are taken, and over which the judge looks back."""

SPACING = 0.15
"""Seconds between two moments that are kept for them; a loader usually reports every 0.2 s."""

FIELDS: tuple[str, ...] = Rates.__struct_fields__

_PLACE = {name: place for place, name in enumerate(FIELDS)}
"""Field of `Rates` → its place: a message costs less without names."""

_COUNTED = [(_PLACE[number.name], number.total, number.scale) for number in NUMBERS if number.total is not None]
_WORKED = [(_PLACE[number.name], number.of_worker, number.scale) for number in NUMBERS if number.of_worker is not None]
_DEPTHS = [(_PLACE[number.name], number.depth) for number in NUMBERS if number.depth is not None]
_SHARES = [_PLACE[kind.name] for kind in KINDS]
_TIMES = attrgetter(*[f"{kind.name}_us" for kind in KINDS])
_WORK = attrgetter("fetch_us", "collate_us", "send_us", "batches", "cpu_ms", "queued_ms")
"""What workers have counted; the first three make up `busy_us`."""
_NO_WORK = (0,) * 6
_OCCUPIED = [_PLACE[name] for name in ("processor", "queued", "blocked", "others")]


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
    glances: Glances = Glances()
    far: Traffic | None = None
    """What other machines do, as of `told_at`; None: there are none."""

    @property
    def yielded(self) -> int:
        return int(self.counted[0])


class Meter:
    """Makes rates from the counters of two snapshots."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        """Those of the last snapshot,"""
        self._pids: list[tuple[int, int]] = []
        """their numbers and process ids: those of two machines may have the same,"""
        self._before = _counters([])
        """and their counters, all of them together."""
        self._sums = [0] * (len(_WORKED) + 4)
        self._occupation = OccupationMeter()
        self._traffic: TrafficMeter | None = None
        self._far: Traffic | None = None
        self._told = Sums()
        self._told_at = 0.0
        self._depths: list[float] = []
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
        self._depths = [float(depth(snapshot)) for _, depth in _DEPTHS]
        if len(self._recent) > 1 and totals.at - self._recent[-2].at < SPACING:
            self._recent[-1] = totals
        else:
            self._recent.append(totals)
        while len(self._recent) > 2 and self._recent[1].at <= totals.at - WINDOW:
            self._recent.popleft()
        return self._between(before, totals)

    def machines(self) -> list[MachineRates]:
        """What came from each machine of the last snapshot lately, in their order."""
        return [] if self._traffic is None or self.last is None else self._traffic.rates(self.last.at)

    def recent(self) -> Rates:
        """Rates over the last 10 s."""
        if not self._recent:
            return Rates()
        return self._between(self._recent[0], self._recent[-1])

    def _between(self, before: Totals, after: Totals) -> Rates:
        values = between(before, after)
        for (place, _), depth in zip(_DEPTHS, self._depths, strict=True):
            values[place] = depth
        occupation = self._occupation
        for place, value in zip(_OCCUPIED, (*occupation.workers, occupation.others), strict=True):
            values[place] = value
        return Rates(*values)

    def _totals(self, snapshot: Snapshot) -> Totals:
        self._count_workers(snapshot)
        *worked, busy, made, processor, queued = self._sums
        sums = Sums(busy, processor, queued, snapshot.processors.others_ms)
        self._occupation.take(snapshot.at, sums)
        far = self._count_elsewhere(snapshot)
        if sums[1:] != self._told[1:] or not 0 <= snapshot.at - self._told_at < MOST:
            self._told, self._told_at, self._far = sums, snapshot.at, far
        return Totals(
            snapshot.at,
            tuple([total(snapshot) for _, total, _ in _COUNTED]),
            tuple(worked),
            _TIMES(snapshot.times),
            busy,
            made,
            self._told,
            self._told_at,
            snapshot.processors.allowed if snapshot.knows("workers.queued_ms") else 0.0,
            Glances() if snapshot.glances is UNSET else snapshot.glances,
            self._far,
        )

    def _count_elsewhere(self, snapshot: Snapshot) -> Traffic | None:
        if snapshot.machines is UNSET:
            self._traffic = None
            return None
        self._traffic = self._traffic or TrafficMeter()
        return self._traffic.take(snapshot, snapshot.machines)

    def _count_workers(self, snapshot: Snapshot) -> None:
        workers, sums = snapshot.workers, self._sums
        pids, now = [(worker.id, worker.pid) for worker in workers], _counters(workers)
        longest = 0 if self.last is None else max(0, int(1e6 * (snapshot.at - self.last.at)))
        if pids == self._pids:
            _grow(sums, now, self._before, longest * len(workers))
        elif self.last is not None:
            # The first snapshot only sets the mark; a worker born since then counts from zero. One that was not seen
            # for a while was busy for the time since the last snapshot at the most.
            known = dict(zip(self._pids, self._workers, strict=True))
            for which, worker in zip(pids, workers, strict=True):
                before = known.get(which)
                _grow(sums, _counters([worker]), _counters([before] if before is not None else []), longest)
        self._workers, self._pids, self._before = workers, pids, now


def _counters(workers: Sequence[Worker]) -> list[int]:
    """What workers have counted, all of them together."""
    fetch, collate, send, *rest = map(sum, zip(*map(_WORK, workers), strict=True)) if workers else _NO_WORK
    busy = fetch + collate + send
    return [
        *[busy if of_worker is busy_us else sum(map(of_worker, workers)) for _, of_worker, _ in _WORKED],
        busy,
        *rest,
    ]


def _grow(sums: list[int], now: list[int], before: list[int], longest: int) -> None:
    """Add what counters have grown by; those of time at batches by no more than `longest`."""
    most = len(sums) - 3
    for number, (new, old) in enumerate(zip(now, before, strict=True)):
        if new > old:
            sums[number] += new - old if number >= most else min(new - old, longest)


def between(before: Totals, after: Totals) -> list[float]:
    """Rates from one moment to a later one, by their places; what is seen at one moment is left at zero."""
    seconds = after.at - before.at
    per_second = 1.0 / seconds if seconds > 1e-6 else 0.0
    values = [0.0] * len(FIELDS)
    for (place, _, scale), now, then in zip(_COUNTED, after.counted, before.counted, strict=True):
        values[place] = max(0, now - then) * scale * per_second
    for (place, _, scale), now, then in zip(_WORKED, after.worked, before.worked, strict=True):
        values[place] = (now - then) * scale * per_second
    spent = [max(0, now - then) for now, then in zip(after.times, before.times, strict=True)]
    whole = sum(spent)
    if whole:
        for place, part in zip(_SHARES, spent, strict=True):
            values[place] = part / whole
    return values


def over(before: Totals, after: Totals) -> Rates:
    """Rates from one moment to a later one; what is seen at one moment is not in them."""
    return Rates(*between(before, after))


def brief(rates: Rates) -> Rates:
    """The same to four digits: half the bytes on the wire, and more than a row of the overview shows."""
    return Rates(*[float(f"{value:.4g}") if value else 0.0 for value in msgspec.structs.astuple(rates)])
