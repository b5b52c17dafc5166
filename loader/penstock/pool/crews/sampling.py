"""A worker process that samples itself: the sampler is begun and ended as the board says."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from ...profiling.phases import is_idle
from ...profiling.sampler import Chunk, Sampler, Target
from .board import PROFILE_ORDER, Word


class SelfSampling:
    """Its methods are called by the thread that makes batches."""

    def __init__(
        self, row: memoryview, worker: int, roots: frozenset[CodeType], send: Callable[[int, Chunk], None]
    ) -> None:
        """`send` is given the number of the order, and called in the sampler's thread."""
        self.word = 0
        """What the board said when it was last looked at."""
        self._row = row
        self._worker = worker
        self._roots = roots
        self._send = send
        self._sampler: Sampler | None = None

    def follow(self) -> None:
        """The board says something new."""
        self.stop()
        self.word = word = self._row[Word.PROFILE]
        order, millihertz = divmod(word, PROFILE_ORDER)
        if not millihertz:
            return
        row, send = self._row, self._send
        sampler = Sampler(
            millihertz / 1000,
            lambda chunk: send(order, chunk),
            self._roots,
            is_idle,
            wanted=lambda: row[Word.PROFILE] == word,
        )
        sampler.watch(Target.this_thread(self._worker, row, (Word.STATE, Word.BATCH)))
        try:
            sampler.start()
        except RuntimeError:  # there may be no more threads
            return
        self._sampler = sampler

    def stop(self) -> None:
        """End it, if it is under way, and send what was seen last."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
