"""How much of its time the publisher listens. A plain object: it is told what time it is.

A backend says little: an acknowledgement a second, a command now and then. One that floods would keep the thread busy,
and with it the interpreter lock that training needs. So listening is paid for, in processor time, from an account that
fills at a fixed rate; a debt is slept off, and meanwhile the other side's messages stay in the kernel.
"""

from __future__ import annotations

SHARE = 0.02
"""Seconds of processor time per second that may go into listening for long."""
BURST = 0.02
"""Seconds that may go into it at once."""


class Attention:
    """How much of the processor the publisher may still spend on listening."""

    def __init__(self) -> None:
        self._credit = BURST
        self._at = 0.0

    def left(self, now: float) -> bool:
        """May the publisher listen?"""
        self._credit = min(BURST, self._credit + SHARE * max(now - self._at, 0.0))
        self._at = now
        return self._credit > 0

    def spend(self, seconds: float) -> None:
        self._credit -= seconds

    def back_at(self) -> float:
        """When there will be some again."""
        return self._at + max(-self._credit, 0.0) / SHARE + 0.001
