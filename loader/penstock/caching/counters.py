"""What came of asking a cache, counted by all processes and threads that ask it, in shared memory.

Each of them has a row of its own, so that nobody's counts are lost to anybody else's.
"""

from __future__ import annotations

import fcntl
import os
import threading
from typing import NamedTuple

from ..pool.memory import Mapping, create_segment
from .handles import Handle

_ROWS, _WORDS = 4096, 4
_SIZE = (_ROWS + 1) * _WORDS * 8


class Counts(NamedTuple):
    """What a cache has brought so far."""

    hits: int
    misses: int
    saved: int
    """ns that samples took when they were made, less what it took to read them."""


class Counters:
    """Counts of one cache that all processes with its descriptor add to."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Takes the descriptor over; None: they begin at 0."""
        self._descriptor = create_segment(_SIZE) if descriptor is None else descriptor
        self._words = memoryview(Mapping(self._descriptor, _SIZE).export()).cast("B").cast("q")
        self._mine = threading.local()

    def __del__(self) -> None:
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)

    def handle(self) -> Handle:
        return Handle.of(self._descriptor)

    def hit(self, saved: int) -> None:
        row = self._row()
        self._words[row] += 1
        self._words[row + 2] += saved

    def missed(self, samples: int = 1) -> None:
        self._words[self._row() + 1] += samples

    def totals(self) -> Counts:
        words = self._words
        rows = range(_WORDS, (min(words[0], _ROWS) + 1) * _WORDS, _WORDS)
        return Counts(*(sum(words[row + column] for row in rows) for column in range(3)))

    def _row(self) -> int:
        """Where this thread's row begins; whoever has been forked takes another one than its parent."""
        mine = self._mine
        if getattr(mine, "process", 0) != os.getpid():
            with _claiming:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, 0)
                try:
                    number = self._words[0]
                    self._words[0] += 1
                finally:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, 0)
            mine.row, mine.process = (number % _ROWS + 1) * _WORDS, os.getpid()
        row: int = mine.row
        return row


_claiming = threading.Lock()


def _start_over_after_fork() -> None:
    global _claiming
    _claiming = threading.Lock()


os.register_at_fork(after_in_child=_start_over_after_fork)
