"""Another machine's monotonic clock, told in terms of this one's."""

from __future__ import annotations

from collections import deque

KEPT = 32


class ClockOffset:
    """How far a clock is from ours. Of the last exchanges the quickest tells best: least can be wrong with it."""

    def __init__(self) -> None:
        self.offset = 0
        """What is to be added to its moments, ns."""
        self._exchanges: deque[tuple[int, int]] = deque(maxlen=KEPT)

    def learn(self, asked: int, theirs: int, answered: int) -> None:
        """We asked and were answered at these moments of our clock; it said what its own was in between."""
        self._exchanges.append((answered - asked, (asked + answered) // 2 - theirs))
        self.offset = min(self._exchanges)[1]

    def here(self, moment: int) -> int:
        """A moment of that clock, as ours has it; those below 0 stand for none."""
        return moment + self.offset if moment >= 0 else moment
