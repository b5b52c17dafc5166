"""What was refused in the last minute because a limit was reached, in words for the page and `/readyz`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

Refused = Literal["connections", "loaders", "messages"]

WORDS: dict[Refused, str] = {
    "connections": "connections were refused, because too many are open",
    "loaders": "loaders were refused, because too many are known",
    "messages": "loaders were sent away, because they sent more than could be stored",
}
SAID_FOR = 60.0
"""Seconds."""


class Refusals:
    """What was refused lately, for those who ask why."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.told = ""
        """What is said now; empty: nothing was refused lately."""
        self.total: dict[Refused, int] = dict.fromkeys(WORDS, 0)
        """Since the start."""
        self._clock = clock
        self._last: dict[Refused, float] = {}

    def note(self, what: Refused) -> None:
        self.total[what] += 1
        self._last[what] = self._clock()

    def tell(self) -> bool:
        """Work out what is to be said now; whether it is something else than before."""
        now = self._clock()
        lately = [WORDS[what] for what in WORDS if now - self._last.get(what, float("-inf")) < SAID_FOR]
        before, self.told = self.told, f"In the last minute {'; '.join(lately)}." if lately else ""
        return self.told != before
