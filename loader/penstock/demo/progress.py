"""One line about how the training goes: rewritten in place on a terminal, a new one now and then in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ..insight.rates import Meter
from ..insight.shares import of_rates, waiting
from ..protocol import Rates, Stats

ON_TERMINAL = 0.5
"""Seconds between two lines there."""
ELSEWHERE = 5.0
"""Seconds between two lines in a file or a pipe."""


class Pace:
    """What a loader did in the last 10 s, by the definitions and the arithmetic of the dashboard."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats
        self._meter = Meter()
        self._next = 0.0
        self.snapshot = stats()
        self.rates = Rates()

    def look(self) -> None:
        """Called after every step; looks twice a second."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + ON_TERMINAL
            self.snapshot = self._stats()
            self._meter.take(self.snapshot)
            self.rates = self._meter.recent()

    @property
    def waiting(self) -> float:
        """Share of the time that training waited for data."""
        shares = of_rates(self.rates)
        return 0.0 if shares is None else waiting(shares)

    def __str__(self) -> str:
        rates, snapshot = self.rates, self.snapshot
        paused = " (paused)" if snapshot.state == "paused" else ""
        pending = f" ({snapshot.pending} from the next epoch on)" if snapshot.pending is not None else ""
        return (
            f"{rates.batches:5.1f} batches/s, waiting for data {self.waiting:4.0%}{paused}, "
            f"{rates.workers:.0f} workers{pending}, epoch {snapshot.epoch}"
        )


class ProgressLine:
    """One line in the terminal that is written over; lines one below the other where it is no terminal."""

    def __init__(self) -> None:
        self._rewrites = sys.stdout.isatty()
        self._apart = ON_TERMINAL if self._rewrites else ELSEWHERE
        self._next = float("inf")
        self._open = False

    def show(self, text: Callable[[], str]) -> None:
        """Called after every step."""
        now = time.monotonic()
        if self._next == float("inf"):
            self._next = now + self._apart  # of the first step there is nothing to say yet
        if now < self._next:
            return
        self._next = now + self._apart
        if self._rewrites:
            self._open = True
            print(f"\r{text()}\x1b[K", end="", flush=True)
        else:
            print(text(), flush=True)

    def end(self) -> None:
        """What is printed next begins a line of its own."""
        if self._open:
            self._open = False
            print(flush=True)
