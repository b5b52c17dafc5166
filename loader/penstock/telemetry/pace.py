"""When a look at the loader becomes a snapshot that is published. Plain objects: they are told what time it is.

The publisher looks once an interval of its own. The backend says how often it wants to hear of it: rarely, if nobody
watches. A look in between is not lost: the least and the greatest of every rate go with the next snapshot.
"""

from __future__ import annotations

from msgspec import UNSET, structs

from ..insight.rates import Meter
from ..protocol import Between, Rates, Snapshot

SLOWEST = 60.0
"""Seconds between two snapshots at the most, whatever the backend says."""
SOONER = 0.25
"""Share of the pace after which a look that brings news is published."""

News = tuple[object, ...]


class Pacer:
    """Chooses among the looks at a loader those that are published."""

    def __init__(self, own: float) -> None:
        self._own = own
        """Seconds between two looks."""
        self._told = 0.0
        self._last = float("-inf")
        """When a snapshot was published last."""
        self._news: News = ()
        """What it said that is worth a snapshot when it changes."""

    @property
    def slow(self) -> bool:
        """Whether there are looks that are not published."""
        return self._told >= 1.5 * self._own

    @property
    def interval(self) -> float:
        """Seconds between two snapshots."""
        return max(self._own, self._told)

    def tell(self, interval_us: int) -> None:
        """The backend has said how often it wants a snapshot."""
        self._told = min(interval_us / 1e6, SLOWEST)

    def due(self, snapshot: Snapshot, now: float) -> bool:
        """Whether this look shall be published. Looks are not exactly on time, so half of one may be missing."""
        waited = now - self._last + self._own / 2
        news = _news(snapshot)
        if not self.slow or waited >= self._told or (news != self._news and waited >= SOONER * self._told):
            self._last, self._news = now, news
            return True
        return False


def _news(snapshot: Snapshot) -> News:
    """What somebody should know at once, in so far as no event tells it."""
    errors = 0 if snapshot.errors is UNSET else snapshot.errors.count
    hangs = snapshot.hang is not UNSET
    crew = [worker.pid for worker in snapshot.workers]
    return snapshot.state, snapshot.target, snapshot.pending, crew, snapshot.bad, errors, hangs


class Extremes:
    """The least and the greatest of every rate, over the looks since the last snapshot."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._looks = 0
        self._low: tuple[float, ...] = ()
        self._high: tuple[float, ...] = ()

    def add(self, snapshot: Snapshot) -> None:
        """Another look. What is before the first one is not known, so it only sets the mark."""
        first = self._meter.last is None
        values = structs.astuple(self._meter.take(snapshot))
        if first:
            return
        self._low = tuple(map(min, self._low, values)) if self._looks else values
        self._high = tuple(map(max, self._high, values)) if self._looks else values
        self._looks += 1

    def take(self) -> Between | None:
        """What was seen since the last call; None: no more than the snapshot itself says."""
        looks, self._looks = self._looks, 0
        return Between(looks, Rates(*self._low), Rates(*self._high)) if looks > 1 else None
