"""What came from another machine, and what was lost on the way: sums that outlive a connection."""

from __future__ import annotations

LATELY = 1 / 16
"""How much the last batch counts in the mean of what batches take to come here."""


class Traffic:
    """Of one agent. Written by the conductor's thread, read by any."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.lost = 0
        """Tasks that were lost with the agent or on the way."""
        self.way = 0
        """ns."""
        self._before = (0, 0)
        self._now = (0, 0)
        """Bytes and ns of connections before, and of this one."""

    @property
    def bytes(self) -> int:
        return self._before[0] + self._now[0]

    @property
    def full_ns(self) -> int:
        return self._before[1] + self._now[1]

    def received(self, nbytes: int) -> None:
        """So much came over this connection so far."""
        self._now = nbytes, self._now[1]

    def full(self, nanoseconds: int) -> None:
        """For so long this connection took no more."""
        self._now = self._now[0], nanoseconds

    def on_the_way(self, nanoseconds: int) -> None:
        """A batch took so long to come here, by clocks that agree to within half of a round trip."""
        taken = max(nanoseconds, 0)
        self.way = taken if not self.way else self.way + int((taken - self.way) * LATELY)

    def cut(self, tasks: int) -> None:
        """The connection has ended, and so many tasks are lost."""
        self.lost += tasks
        self._before, self._now = (self.bytes, self.full_ns), (0, 0)
