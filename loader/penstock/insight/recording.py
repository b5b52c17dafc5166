"""What is kept of batches for the replay: rings that only grow by appending, from any thread. Pure.

Of each batch that was measured: when its worker began it, how long it took, and how much of that it was on a processor
or waiting for one. Of training: how long it was in `next()` for each batch, and how long it had it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

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


class Recording:
    def __init__(self, kept: int = KEPT) -> None:
        self.made: deque[Made] = deque(maxlen=kept)
        self.turns: deque[Turn] = deque(maxlen=kept)
