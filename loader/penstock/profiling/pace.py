"""How long threads of this process wait for the interpreter lock while samplers run.

Python lets a thread that wants it wait for 5 ms, and of work that gives it up of itself more often than that nothing
else would ever be seen. While a sampler runs, threads wait for `HASTE` only; where other Python threads share the
process, and it would cost them much to take turns so often, for `PATIENCE`.
"""

from __future__ import annotations

import sys

HASTE = 50e-6
PATIENCE = 1e-3
"""Seconds."""


class Pace:
    """The switch interval, as samplers need it; all methods are called by their threads."""

    def __init__(self) -> None:
        self._samplers = 0
        self._before = self._set = 0.0

    def begin(self) -> None:
        self._samplers += 1
        if self._samplers == 1:
            self._before, self._set = sys.getswitchinterval(), 0.0
        self.choose(1)

    def choose(self, targets: int) -> None:
        """Judge by the number of Python threads: those looked at, the sampler, and one of ours that rarely wakes."""
        wanted = HASTE if len(sys._current_frames()) <= targets + 2 else PATIENCE
        if wanted < self._before and not self._is_others():
            sys.setswitchinterval(wanted)
            self._set = wanted

    def end(self) -> None:
        self._samplers -= 1
        if not self._samplers and self._set and not self._is_others():
            sys.setswitchinterval(self._before)

    def _is_others(self) -> bool:
        """Has somebody else set it meanwhile?"""
        return self._set != 0.0 and abs(sys.getswitchinterval() - self._set) > 1e-6


PACE = Pace()
