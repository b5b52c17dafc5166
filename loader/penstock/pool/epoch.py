"""One epoch of a pool: what the iterating thread and the conductor share while it lasts.

Each field has one writer. Deques are appended to by one thread and popped by the other, which Python makes atomic.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

from ..failures import Failure
from .observer import Clock
from .signals import Signal
from .tasks import Batch
from .window import Finished, Window


class Epoch:
    """One epoch of a pool. Of each field only one thread is the writer; see above."""

    def __init__(self, number: int, window: Window, times: Clock, shared_seed: int | None = None) -> None:
        self.number = number
        self.shared_seed = shared_seed
        """For DataPipes: the seed that all workers of all ranks share in this epoch."""
        self.window = window
        self.times = times
        self.ready: deque[Finished] = deque()
        """The data queue: finished, in order, pinned."""
        self.signal = Signal()
        self.taken = 0
        """Batches that the iterating thread has taken from `ready`."""
        self.taken_bytes = 0
        self.ended = False
        """Set by the conductor when no more batches will come (iterable-style)."""
        self.error: BaseException | Failure | None = None
        """Set by the conductor when the pool cannot go on."""
        self.finished = 0
        """Batches that workers have finished."""
        self.pin_entered = 0
        """Batches that the conductor gave to the pin stage."""
        self.pin_left = 0
        """Batches that the pin stage has done with."""
        self.unheard: list[tuple[int, Batch, Any]] = []
        """While it is foreseen: what the observer is to be told of its batches when it begins (worker, batch, indices).
        The conductor's own."""
        self.abandoned = False
        """Nobody takes from it any more."""

    def is_over(self) -> bool:
        """Will nothing more come? What was delivered before `ended` was set is looked at last."""
        return self.ended and self.pin_left == self.pin_entered and not self.ready

    def last_error(self) -> Any:
        """What the conductor left, anew for every call of `next()`: the pool cannot go on."""
        if not isinstance(self.error, BaseException):
            return self.error
        error = copy.copy(self.error)
        error.__cause__ = self.error.__cause__
        return error

    def fail(self, error: BaseException | Failure) -> None:
        self.error = error
        self.signal.set()
