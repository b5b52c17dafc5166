"""How often each loader shall publish. Pure: it is told who watches, and how busy the event loop is.

What somebody looks at comes as often as the loader looks at itself, up to five times a second; the rest once a second,
and less often while the loop is busy. Only when that is not enough does what is watched come less often, too. Nothing
is lost by it: loaders tell at once what happens, and keep the least and the greatest of what they see in between.
"""

from __future__ import annotations

WATCHED = 0.2
"""Seconds between two snapshots of a loader that somebody looks at,"""
UNWATCHED = 1.0
"""and of the others,"""
SLOWEST = 4.0
"""which grow to so many while the loop is busy. The judge takes a longer silence for one of which nothing is known."""
SLOWER = 2.0
"""The pace of what is watched is this many times slower at the most."""
LINGER = 10.0
"""Seconds for which a loader counts as watched after the last viewer left: a page that is loaded anew comes back."""
BUSY = 0.75
"""Share of the time from which on the loop is too busy,"""
IDLE = 0.4
"""and below which it has time to spare."""
STEP = 1.4
CALM = 5
"""How often in a row it must have had time to spare before the pace quickens."""


class Pacing:
    """The pace for each kind of loader, by how busy the loop has been."""

    def __init__(self) -> None:
        self._factor = 1.0
        self._calm = 0

    @property
    def unwatched(self) -> float:
        """Seconds between two snapshots of a loader that nobody looks at."""
        return min(SLOWEST, UNWATCHED * self._factor)

    @property
    def watched(self) -> float:
        """Seconds between two snapshots of a loader that somebody looks at."""
        return WATCHED * min(SLOWER, max(1.0, self._factor * UNWATCHED / SLOWEST))

    def note(self, busy: float) -> None:
        """The loop was at work for this share of the time since the last call, which was about a second ago."""
        if busy > BUSY:
            self._calm = 0
            self._factor = min(SLOWEST / UNWATCHED * SLOWER, self._factor * STEP)
        elif busy < IDLE:
            self._calm += 1
            if self._calm >= CALM:
                self._calm = 0
                self._factor = max(1.0, self._factor / STEP)
        else:
            self._calm = 0

    def interval(self, since_watched: float) -> float:
        """The pace of a loader that was last watched so many seconds ago."""
        return self.watched if since_watched < LINGER else self.unwatched
