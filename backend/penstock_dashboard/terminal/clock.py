"""How old something is, without trusting two clocks to agree.

Sender and receiver clocks differ by an unknown constant; a message's transit adds a delay that is never negative.
The smallest difference seen lately is therefore the constant plus the shortest transit.
"""

from __future__ import annotations

import math

WINDOW = 60.0
"""Seconds; the estimate forgets within two of them, so that it follows clocks that drift."""


class Offset:
    """The backend's clock on ours, which is steady."""

    def __init__(self) -> None:
        self._current = math.inf
        self._next = math.inf
        self._turned = -math.inf

    def note(self, sent: float, received: float) -> None:
        if received - self._turned > WINDOW:
            self._current, self._next, self._turned = self._next, math.inf, received
        self._next = min(self._next, received - sent)
        self._current = min(self._current, received - sent)

    def age(self, sent: float, now: float) -> float:
        """Seconds since a moment of the sender's clock; NaN before the first message."""
        return max(0.0, now - sent - self._current) if math.isfinite(self._current) else math.nan
