"""What a training is like, and the situations of which there are recordings. No torch here."""

from __future__ import annotations

from msgspec import Struct


class Shape(Struct, frozen=True):
    """A training whose samples and steps take as long as is said here, and no processor."""

    workers: int = 4
    """Worker processes at the start."""
    fetch: float = 0.06
    """Seconds that a batch's samples take together."""
    step: float = 0.01
    """Seconds of a training step."""
    slow_every: int = 0
    """Of so many batches one has a sample that takes `slow` seconds more; 0: none has."""
    slow: float = 1.0
    """Seconds, as above."""
    batches: int = 2500
    """Batches in an epoch."""
    batch_size: int = 16
    stream: bool = False
    """The dataset is iterable-style, and cannot save its position."""
    max_workers: int = 32


SITUATIONS = {
    "busy": Shape(fetch=0.14, step=0.009),
    "stalling": Shape(slow_every=40),
    "waiting": Shape(workers=2, fetch=0.15, step=0.02),
    "keeping-up": Shape(workers=2, fetch=0.02, step=0.025),
}
"""busy: four workers, all of them busy, and training waits for them. stalling: four workers that would do, but for slow
samples, behind which finished batches wait. waiting, keeping-up: two workers that do not do, and two that do."""
