"""Why workers are busy: on a processor, waiting for one, or blocked by something else. Pure.

A worker that has a batch in hand runs, is ready to run (the system's run queue), or waits for something that is no
processor: storage, the network, a lock, a sleep. The first two are the scheduler's own sums; the third is what is left
of the time at batches. A worker without a batch uses next to nothing, so its sums need not be told apart.
"""

from __future__ import annotations

from typing import NamedTuple

LEAST = 0.9
"""Seconds between two looks that are compared: loaders ask the scheduler once a second."""
MOST = 2.5
"""After so many seconds, sums that have not changed are taken for new ones, and not for old ones told again."""


class Occupation(NamedTuple):
    """Shares of workers, or workers on average. They add up to the time at batches."""

    processor: float = 0.0
    """On a processor."""
    queued: float = 0.0
    """Ready to run, waiting for a processor."""
    blocked: float = 0.0
    """Waiting for something else."""


def occupation(busy: float, processor: float, queued: float) -> Occupation:
    """Split time at batches, given processor time and time in the run queue in the same unit.

    A worker with threads of its own may use more processor time than there is time at batches: then all of it counts as
    such.
    """
    running = min(max(processor, 0.0), busy)
    waiting = min(max(queued, 0.0), busy - running)
    return Occupation(running, waiting, max(busy - running - waiting, 0.0))


class Sums(NamedTuple):
    """What grows, over all workers of a loader."""

    busy_us: int = 0
    """Time at batches."""
    processor_ms: int = 0
    queued_ms: int = 0
    others_ms: int = 0
    """Time on our processors that others took."""


class OccupationMeter:
    """From sums that are brought up to date about once a second to rates at every snapshot."""

    def __init__(self) -> None:
        self.workers = Occupation()
        """Workers on average."""
        self.others = 0.0
        """Processors that others took."""
        self._at = 0.0
        self._before: Sums | None = None

    def take(self, at: float, sums: Sums) -> None:
        if self._before is None or at < self._at:
            self._at, self._before = at, sums
            return
        seconds = at - self._at
        told_again = sums[1:] == self._before[1:]
        if seconds < LEAST or (told_again and seconds < MOST):
            return
        busy, processor, queued, others = (now - then for now, then in zip(sums, self._before, strict=True))
        self.workers = occupation(busy / 1e6 / seconds, processor / 1e3 / seconds, queued / 1e3 / seconds)
        self.others = max(others, 0) / 1e3 / seconds
        self._at, self._before = at, sums
