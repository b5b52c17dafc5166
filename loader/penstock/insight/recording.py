"""What is kept of batches for the replay: rings that only grow by appending, from any thread. Pure.

Of each batch that was measured: when its worker began it, how long it took, and how much of that it was on a processor
or waiting for one. Of training: how long it was in `next()` for each batch, and how long it had it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..protocol import Glances

KEPT = 4096
"""Batches that are remembered: with one slow batch in a hundred, forty of these."""


class Made(NamedTuple):
    """A batch that a worker made. Durations in s, the moment on any clock that only goes forward."""

    began: float
    wall: float
    """From taking up the task to the batch in its slot."""
    processor: float
    """Of it, on a processor; more than `wall` if the dataset has threads."""
    queued: float
    """Of it, ready and waiting for a processor."""
    nbytes: int
    """Size of the tensors and arrays in it."""
    worker: int = 0
    slowest: float = 0.0
    """Time of its slowest sample; 0: not known."""

    @property
    def blocked(self) -> float:
        """Of it, waiting for anything else."""
        return max(self.wall - self.processor - self.queued, 0.0)


class Turn(NamedTuple):
    """What training did between two batches, s."""

    inside: float
    """In `next()`."""
    own: float
    """Then, until it called `next()` again: its own time."""


class Glance(NamedTuple):
    """How a pool stood at one moment, and what some of its workers waited for then."""

    at: float
    """On the clock of `Made.began`."""
    workers: int
    """Workers that take tasks."""
    flows: bool
    """There were tasks for all of them, or no room for more: not at the end of an epoch."""
    made: int
    """Batches that were made so far."""
    taken: int
    """Batches that training has taken so far."""
    looked: int = 0
    """Workers with a batch in hand that were looked at; of these"""
    locked: int = 0
    """waited for a lock,"""
    asleep: int = 0
    """slept,"""
    other: int = 0
    """waited for something else; and the rest ran."""


class Recording:
    """The batches and glances that replay starts from, the newest ones."""

    def __init__(self, kept: int = KEPT) -> None:
        self.arrived = 0
        """Batches that workers made, those that were not measured included."""
        self.glances: deque[Glance] = deque(maxlen=kept)
        self.seen: Glances | None = None
        """All of them, added up."""
        self.made: deque[Made] = deque(maxlen=kept)
        self.turns: deque[Turn] = deque(maxlen=kept)

    def since(self, moment: float) -> Recording:
        """What was recorded from a moment on, on the clock of `Made.began`: what was before may be another load."""
        found = Recording()
        found.made.extend(made for made in list(self.made) if made.began >= moment)
        found.glances.extend(glance for glance in list(self.glances) if glance.at >= moment)
        turns = list(self.turns)
        taken = found.glances[-1].taken - found.glances[0].taken if found.glances else len(found.made)
        found.turns.extend(turns[max(len(turns) - taken, 0) :])
        return found

    def glance(self, glance: Glance) -> None:
        """Another glance."""
        self.glances.append(glance)
        if glance.looked:
            seen, crowded = self.seen or Glances(), glance.locked > 0
            self.seen = Glances(
                seen.times + 1,
                seen.crowded + crowded,
                seen.workers + glance.looked,
                seen.locked + glance.locked,
                seen.asleep + glance.asleep,
                seen.other + glance.other,
            )
