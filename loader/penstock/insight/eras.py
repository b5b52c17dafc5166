"""Eras: stretches of time with the same number of workers. What was made, and what workers waited for, in each. Pure.

What counts is time in which batches flow: not pauses, not the end of an epoch, not the first batches after a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from .recording import Glance

SETTLING = 2
"""Batches of every worker that do not count after a change."""
APART = 1.0
"""Seconds between two glances from which on it is not known what happened between them."""
LEAST_SECONDS, LEAST_BATCHES, LEAST_ROUNDS = 1.5, 24, 4
"""What a rate is of at the least; rounds are batches of every worker."""
LEAST_LOOKED = 40
"""Workers that must have been looked at to say what they wait for."""
PARTS = 8
"""Parts of an era whose differences say how sure its rate is."""


@dataclass
class Era:
    """A time in which the number of workers was the same, and what it brought."""

    workers: int
    began: float
    ended: float = 0.0
    seconds: float = 0.0
    """In which batches flowed."""
    made: int = 0
    taken: int = 0
    pieces: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, batches made, batches taken: between two glances."""
    glances: int = 0
    looked: int = 0
    locked: int = 0
    asleep: int = 0
    other: int = 0
    crowded: int = 0
    """Glances in which somebody waited for a lock."""

    @property
    def enough(self) -> bool:
        least = max(LEAST_BATCHES, LEAST_ROUNDS * self.workers)
        return self.seconds >= LEAST_SECONDS and min(self.made, self.taken) >= least

    @property
    def told(self) -> bool:
        """Whether it is known what workers waited for."""
        return self.looked >= LEAST_LOOKED

    @property
    def batches(self) -> float:
        """Batches a second: what was made, or what training took if that is less."""
        return min(self.made, self.taken) / self.seconds if self.seconds > 0 else 0.0

    @property
    def error(self) -> float:
        """Standard deviation of `batches`, relative to it."""
        return min(self._error(1), self._error(2))

    def _error(self, which: int) -> float:
        """Of batches made (1) or taken (2): training takes those that waited behind a slow one all at once."""
        size = max(math.ceil(len(self.pieces) / PARTS), 1)
        parts = [self.pieces[start : start + size] for start in range(0, len(self.pieces), size)]
        rates = [sum(piece[which] for piece in part) / s for part in parts if (s := sum(p[0] for p in part)) > 0]
        mean = sum(rates) / len(rates) if rates else 0.0
        if len(rates) < 3 or mean <= 0:
            return 1.0
        return math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1) / len(rates)) / mean

    def add(self, before: Glance, now: Glance) -> None:
        seconds, made, taken = now.at - before.at, now.made - before.made, now.taken - before.taken
        self.seconds += seconds
        self.made += made
        self.taken += taken
        self.pieces.append((seconds, made, taken))
        if now.looked:
            self.glances += 1
            self.looked += now.looked
            self.locked += now.locked
            self.asleep += now.asleep
            self.other += now.other
            self.crowded += now.locked > 0

    @property
    def waiting_for_locks(self) -> float:
        """Share of blocked time."""
        blocked = self.locked + self.asleep + self.other
        return self.locked / blocked if blocked else 0.0


def eras(glances: Iterable[Glance]) -> list[Era]:
    """In the order of time."""
    found: list[Era] = []
    settled = 0
    for before, now in pairwise(glances):
        if not found or found[-1].workers != now.workers:
            found.append(Era(now.workers, now.at))
            settled = now.made + SETTLING * now.workers
        era = found[-1]
        era.ended = now.at
        flows = before.flows and now.flows and now.at - before.at < APART
        if before.workers == now.workers and flows and before.made >= settled:
            era.add(before, now)
    return found
