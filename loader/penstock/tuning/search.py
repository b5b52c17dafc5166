"""Which number of workers to try next: a bracket that closes around the best one. Pure.

`floor` is the largest number that is known to be too few, `ceiling` the smallest that is known to bring nothing. The
number that is held lies between them. A trial moves one of the three, so a search ends; it is over when neither side is
further away than a tenth.
"""

from __future__ import annotations

RESOLUTION = 0.1
"""Numbers of workers that are closer than this, as a share, are not told apart. One worker is always told from two."""
GROWTH = 1.6
"""By how much to grow at first, while nothing is known of what is above."""
SHRINKAGE = 0.6
"""By how much to shrink at first, while nothing is known of what is below."""


class Search:
    """A bracket around the number of workers that is held."""

    def __init__(self, held: int, least: int, most: int) -> None:
        self.held = held
        """The best number so far."""
        self._least, self._most = least, most
        self.floor = least - 1
        """The largest number that is known, or taken, to be too few."""
        self.ceiling = most + 1
        """The smallest number that is known, or taken, to bring nothing."""

    def above(self) -> int | None:
        """A larger number that is worth a trial; None: there is none."""
        if self.ceiling - self.held <= max(1.0, RESOLUTION * self.held):
            return None
        open_ = self.ceiling > self._most
        wanted = max(self.held + 1, round(self.held * GROWTH)) if open_ else (self.held + self.ceiling) // 2
        return min(wanted, self._most) if min(wanted, self._most) > self.held else None

    def below(self) -> int | None:
        """A smaller number that is worth a trial; None: there is none."""
        if self.held - self.floor <= max(1.0, RESOLUTION * self.held):
            return None
        open_ = self.floor < self._least
        wanted = int(self.held * SHRINKAGE) if open_ else (self.held + self.floor) // 2
        return max(min(wanted, self.held - 1), self._least)

    def keep(self, tried: int) -> None:
        """The number that was tried is better, or as good with fewer workers: then nothing above it is of use."""
        if tried > self.held:
            self.floor = self.held
            self.ceiling = max(self.ceiling, tried + 1)
        else:
            self.ceiling = tried + 1
            self.floor = min(self.floor, tried - 1)
        self.held = tried

    def reject(self, tried: int) -> None:
        """The number that was tried is worse, or no better with more workers."""
        if tried > self.held:
            self.ceiling = tried
        else:
            self.floor = tried

    def reopen(self, upwards: bool) -> None:
        """Time has passed: a step to one side may be worth a trial again."""
        step = max(1, round(RESOLUTION * self.held))
        self.floor, self.ceiling = self.held - 1, self.held + 1
        if upwards:
            self.ceiling = min(self._most + 1, self.held + step + 1)
        else:
            self.floor = max(self._least - 1, self.held - step - 1)
