"""How long to wait before the next attempt to connect. A plain object: it is told what time it is."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST = 0.25
"""Seconds before the first new attempt: a restarted dashboard is found again at once."""
MOST = 30.0
"""Seconds between two attempts at the most."""
STABLE = 10.0
"""A connection that held for so many seconds makes earlier failures forgotten."""


class Backoff:
    """Doubles with every failure. The jitter keeps a thousand ranks from coming back in the same moment."""

    def __init__(self, chance: Callable[[], float] | None = None) -> None:
        # A generator of its own: training's random numbers stay as they are.
        self._chance = chance or random.Random().random
        self._failures = 0
        self._up_since: float | None = None

    def succeeded(self, now: float) -> None:
        """The other side said welcome."""
        self._up_since = now

    def failed(self, now: float) -> float:
        """The connection was lost or never came up; returns the seconds to wait."""
        if self._up_since is not None and now - self._up_since >= STABLE:
            self._failures = 0
        self._up_since = None
        longest = min(MOST, FIRST * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return longest * (0.5 + 0.5 * self._chance())

    def another(self) -> float:
        """The seconds to wait before another replica is tried: many come at once when one has gone."""
        return FIRST * self._chance()
