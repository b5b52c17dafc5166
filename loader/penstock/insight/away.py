"""Time in which training iterates over another loader, within its loop over this one: for validation, say. Pure.

This loader's clock stands still then (`telemetry/nesting.py`), and its workers fill the window and idle. None of that
says what limits it, so it is taken out: as if that time had not been.
"""

from __future__ import annotations

from msgspec.structs import replace

from .occupation import Sums
from .rates import Totals


class Away:
    """What went by so far while training was elsewhere."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._busy_us = 0
        self._made = 0
        self._told = Sums()

    def add(self, first: Totals, last: Totals) -> None:
        """Between these two moments training was elsewhere."""
        self._seconds += max(0.0, last.at - first.at)
        self._busy_us += last.busy_us - first.busy_us
        self._made += last.made - first.made
        self._told = Sums(*(sum(parts) for parts in zip(self._told, _less(last.told, first.told), strict=True)))

    def without(self, moment: Totals) -> Totals:
        """The same moment, as if that had not been."""
        if not self._seconds:
            return moment
        return replace(
            moment,
            at=moment.at - self._seconds,
            busy_us=moment.busy_us - self._busy_us,
            made=moment.made - self._made,
            told=_less(moment.told, self._told),
            told_at=moment.told_at - self._seconds,
        )


def _less(now: Sums, then: Sums) -> Sums:
    return Sums(*(after - before for after, before in zip(now, then, strict=True)))
