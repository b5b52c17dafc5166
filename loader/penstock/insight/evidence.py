"""What a verdict rests on: numbers over a stretch of time in which nothing changed. Pure.

Only what belongs together is counted together. A stretch begins anew with a resize, a pause, an epoch's first batch and
a change of load. The end of an epoch, when nothing is left to hand out, is no part of it; and while training lives on
batches that were made before, what counts is what workers make, not what training takes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import astuple

from ..protocol import Config, Glances, Snapshot, Worker
from .elsewhere import Traffic
from .numbers import KINDS, busy_us
from .occupation import Occupation, occupation
from .rates import WINDOW, Totals
from .shares import Shares, normalised, waiting

ENOUGH = 1.0
"""Seconds of evidence below which nothing is said,"""
PLENTY = 3.0
"""and from which on it does not matter how many batches came."""
FEW = 3
"""Batches, made or yielded, that shorter evidence must have."""
SATURATED = 0.8
"""Share of the time from which on workers have nothing to spare."""
SPACING = 0.15
"""Seconds between two moments that are kept."""
LEAST = 0.8
"""Seconds for which the scheduler's sums must have grown to be used."""
LEAST_GLANCES = 5
"""Glances at workers from which on it is said what they wait for."""
LONG = 40.0
"""Seconds for which some moments are kept, to see whether the load alternates,"""
STEP = 0.8
"""and seconds between two of these."""


class Waits(NamedTuple):
    """What workers that are blocked wait for."""

    crowded: float
    """Share of the moments, 0 to 1, at which somebody waited for a lock that another process had."""
    locked: float
    """Share of blocked time for a lock,"""
    asleep: float
    """asleep,"""
    other: float
    """for something else, as storage or the network."""


class Elsewhere(NamedTuple):
    """Workers on other machines, on average."""

    workers: int
    """Workers there."""
    occupation: Occupation
    """Workers there on a processor, waiting for one, blocked."""
    processors: int
    """Processors that there are."""
    received: float
    """Bytes a second that came from there."""
    full: float
    """Share of the time, 0 to 1, in which the network took no more."""


@dataclass(frozen=True)
class Evidence:
    """Means over a stretch of time, and how much of it there was."""

    when: str
    """Which time it is about, as a sentence begins."""
    seconds: float
    """How long that was."""
    shares: Shares
    """Kinds of time of the training thread; pauses are left out."""
    yielded: int
    """Batches that training took."""
    made: int
    """Batches that workers finished."""
    workers: int
    """Workers that were up all the time."""
    busy: float
    """Workers with a task in hand, on average."""
    occupation: Occupation | None = None
    """Workers on a processor, waiting for one, blocked, on average; None: not known."""
    others: float = 0.0
    """Processors that others took of those that are allowed, on average."""
    allowed: float = 0.0
    """Processors that may be used; 0: not known."""
    waits: Waits | None = None
    """What workers that are blocked wait for; None: not known."""
    earlier: tuple[int, float] | None = None
    """Workers before the last resize, and batches a second that they made; None: there was none."""
    low: float | None = None
    """Least share of waiting in parts of the time, where the parts differ; None: they do not."""
    high: float | None = None
    """Greatest share of waiting in parts of the time."""
    far: Elsewhere | None = None
    """Workers on other machines, which are among all of the above; None: there are none, or that is not known."""

    @property
    def here(self) -> Occupation | None:
        """Workers of this machine on a processor, waiting for one, blocked, on average; None: not known."""
        if self.occupation is None or self.far is None:
            return self.occupation
        return Occupation(*(max(a - b, 0.0) for a, b in zip(self.occupation, self.far.occupation, strict=True)))

    @property
    def enough(self) -> bool:
        """Whether something may be said."""
        return self.seconds >= PLENTY or (self.seconds >= ENOUGH and self.yielded + self.made >= FEW)

    @property
    def load(self) -> float:
        """Share of the time, 0 to 1, in which workers had a task in hand."""
        return min(1.0, self.busy / self.workers) if self.workers else 0.0

    @cached_property
    def waiting(self) -> float:
        """Share of the time, 0 to 1, in which training waits for data, or soon will if this goes on."""
        now = waiting(self.shares)
        spent = self.yielded - self.made
        if self.load < SATURATED or spent <= max(self.workers, self.yielded // 8) or not self.yielded:
            return now
        # Training takes batches faster than busy workers make them: it lives on what was buffered.
        return max(now, 1.0 - (1.0 - now) * self.made / self.yielded)

    @property
    def demand(self) -> float:
        """Batches a second that training would take if it never had to wait; 0: not known."""
        computing = self.shares["compute"] * self.seconds
        return self.yielded / computing if computing > 0.02 * self.seconds else 0.0


def between(when: str, first: Totals, last: Totals, workers: int) -> Evidence | None:
    """What lies between two moments; None if no time passed in an epoch."""
    parts = [
        max(0, now - then) if kind.active else 0 for kind, now, then in zip(KINDS, last.times, first.times, strict=True)
    ]
    shares = normalised(parts)
    seconds = sum(parts) / 1e6
    wall = last.at - first.at
    if shares is None or wall <= 0:
        return None
    return Evidence(
        when,
        min(seconds, wall),
        shares,
        last.yielded - first.yielded,
        last.made - first.made,
        workers,
        (last.busy_us - first.busy_us) / 1e6 / wall,
        *_occupied(first, last),
        waits=_waits(first.glances, last.glances),
        far=_elsewhere(first.far, last.far, last.told_at - first.told_at),
    )


def _elsewhere(first: Traffic | None, last: Traffic | None, seconds: float) -> Elsewhere | None:
    """What other machines did in that time, if it was told twice."""
    if first is None or last is None or seconds < LEAST:
        return None
    busy, processor, queued, received, full = (now - then for now, then in zip(last[:5], first[:5], strict=True))
    return Elsewhere(
        last.workers,
        occupation(busy / 1e6 / seconds, processor / 1e3 / seconds, queued / 1e3 / seconds),
        last.processors,
        received * 1024 / seconds,
        min(full / 1e3 / seconds, 1.0),
    )


def _waits(first: Glances, last: Glances) -> Waits | None:
    """From the glances between two moments, if they are enough."""
    if last.times - first.times < LEAST_GLANCES:
        return None
    times, crowded, _, *kinds = (now - then for now, then in zip(astuple(last), astuple(first), strict=True))
    if not sum(kinds):
        return None
    return Waits(crowded / times, *(kind / sum(kinds) for kind in kinds))


def _occupied(first: Totals, last: Totals) -> tuple[Occupation | None, float, float]:
    """What the scheduler told in that time, if it was asked twice."""
    seconds = last.told_at - first.told_at
    if seconds < LEAST or not last.allowed:
        return None, 0.0, 0.0
    busy, processor, queued, others = (now - then for now, then in zip(last.told, first.told, strict=True))
    found = occupation(busy / 1e6 / seconds, processor / 1e3 / seconds, queued / 1e3 / seconds)
    return found, max(others, 0) / 1e3 / seconds, last.allowed


def of_epoch(when: str, snapshot: Snapshot) -> Evidence | None:
    """An epoch as far as it is, from one snapshot alone: what it says of the epoch, and of its workers' lives."""
    times = snapshot.epoch_times
    spent = {kind.name: getattr(times, f"{kind.name}_us") if kind.active else 0 for kind in KINDS}
    shares = normalised(list(spent.values()))
    if shares is None:
        return None
    crew = [worker for worker in snapshot.workers if worker.state != "dead"]
    busy = sum(map(busy_us, crew))
    alive = busy + 1000 * sum(worker.idle_ms for worker in crew)
    seconds = sum(spent.values()) / 1e6
    each = len(crew) * 1e3 / alive if alive else 0.0
    there = snapshot.elsewhere()
    told, away = _lives(crew, each), [worker for worker in crew if worker.id in there]
    processors = 0 if snapshot.machines is UNSET else sum(machine.processors for machine in snapshot.machines)
    return Evidence(
        when,
        seconds,
        shares,
        snapshot.batch,
        snapshot.batch,
        len(crew),
        len(crew) * busy / alive if alive else 0.0,
        told if busy and snapshot.processors.allowed else None,
        0.0,
        snapshot.processors.allowed,
        far=Elsewhere(len(away), _lives(away, each), processors, 0.0, 0.0) if away else None,
    )


def _lives(workers: list[Worker], each: float) -> Occupation:
    """Why workers were busy since they were born. `each`: what a millisecond of that is, as a share of a worker."""
    busy, processor = sum(map(busy_us, workers)) / 1e3, sum(worker.cpu_ms for worker in workers)
    told = occupation(busy, processor, sum(worker.queued_ms for worker in workers))
    return Occupation(*(part * each for part in told))


class Stretch:
    """The moments that belong together, the last 10 s of them closely and 40 s coarsely."""

    def __init__(self) -> None:
        self._near: deque[Totals] = deque()
        self._far: deque[Totals] = deque()

    def begin(self, moment: Totals | None = None) -> None:
        """What was before does not belong to what comes."""
        self._near.clear()
        self._far.clear()
        if moment is not None:
            self._near.append(moment)
            self._far.append(moment)

    def add(self, moment: Totals) -> None:
        near, far = self._near, self._far
        if len(near) > 1 and moment.at - near[-2].at < SPACING:
            near[-1] = moment
        else:
            near.append(moment)
        while len(near) > 2 and near[1].at <= moment.at - WINDOW:
            near.popleft()
        if not far or moment.at - far[-1].at >= STEP:
            far.append(moment)
        while far and far[0].at < moment.at - LONG:
            far.popleft()

    def cut(self, at: float) -> None:
        """The load has changed at that moment: what was before is of no more use, but to see how loads alternate."""
        while len(self._near) > 2 and self._near[0].at < at:
            self._near.popleft()

    def whole(self, workers: int) -> Evidence | None:
        """Over the last 10 s, or since it began."""
        if len(self._near) < 2:
            return None
        first, last = self._near[0], self._near[-1]
        return between(f"In the last {max(1, round(last.at - first.at))} s", first, last, workers)

    def lately(self, seconds: float, workers: int) -> Evidence | None:
        """Over the last few seconds; None: there are fewer."""
        last = self._near[-1] if self._near else None
        first = next((each for each in reversed(self._near) if last and each.at <= last.at - seconds), None)
        return None if first is None or last is None else between("", first, last, workers)

    def long(self, workers: int) -> Evidence | None:
        """Over as much as is kept, with how far parts of it differ."""
        far = self._far
        if len(far) < 5:
            return None
        found = between(f"In the last {round(far[-1].at - far[0].at)} s", far[0], far[-1], workers)
        parts = [between("", first, last, workers) for first, last in zip(far, list(far)[2:], strict=False)]
        waits = sorted(waiting(part.shares) for part in parts if part is not None)
        if found is None or not waits:
            return found
        return replace(found, low=waits[len(waits) // 10], high=waits[-1 - len(waits) // 10])


def crew_of(snapshot: Snapshot) -> tuple[tuple[int, int], ...]:
    """The workers that make batches, by number and pid: not those that start, leave or are dead."""
    away = ("starting", "retiring", "dead")
    return tuple([(worker.id, worker.pid) for worker in snapshot.workers if worker.pid and worker.state not in away])


def is_drained(snapshot: Snapshot, config: Config) -> bool:
    """Whether nothing of the epoch is left to hand out, so that workers idle for want of tasks."""
    queues = snapshot.queues
    if snapshot.length is not None:
        return snapshot.batch + queues.in_flight >= snapshot.length and queues.index == 0
    # How long the shards of an iterable-style dataset are, only their end tells: workers idle although there is room.
    idle = any(worker.state == "idle" for worker in snapshot.workers)
    return config.style == "iterable" and config.engine == "penstock" and idle and queues.in_flight < queues.window // 2
