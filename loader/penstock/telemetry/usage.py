"""What the system says of memory and processor time: of workers, of training, and of the processors that they share.

Everything is read at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from ..budget import memory_limits
from ..protocol import Processors
from ..usage import Used
from .processors import ProcessorWatch

_AGE = 1.0
"""Seconds for which nothing is read again."""


class Usage:
    """Memory and processor time of workers, read from the system at most once a second."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, Used]] = {}
        self._read_at = -_AGE
        """When processes were read last: all of them together, so that their sums are of one moment."""
        self._gone_ms = 0
        """Processor time of processes that were looked at and are gone."""
        self._budget = (-_AGE, 0)
        self._watch: ProcessorWatch | None = None
        self._processors = (-_AGE, Processors())
        self._others = 0.0

    def budget(self, given: int | None) -> int:
        """The memory budget of an epoch that were to begin now."""
        now = time.monotonic()
        if now - self._budget[0] >= _AGE:
            self._budget = (now, memory_limits(given)[0])
        return self._budget[1]

    def look(self) -> None:
        """A snapshot is taken: whatever was read longer than a second ago is read again for it."""
        now = time.monotonic()
        if now - self._read_at >= _AGE:
            self._read_at = now

    def of(self, worker: Hashable, read: Callable[[], Used]) -> Used:
        """What a worker has used; `read` finds out."""
        known = self._known.get(worker)
        if known is None or known[0] < self._read_at:
            known = self._known[worker] = (time.monotonic(), read())
        return known[1]

    def keep(self, workers: set[Hashable]) -> None:
        """Forget all others."""
        for worker in self._known.keys() - workers:
            gone = self._known.pop(worker, None)
            if gone is not None and not gone[1].elsewhere:
                self._gone_ms += gone[1].processor_ms

    def processors(self) -> Processors:
        """Those that this process may use; what is known of its workers' time is taken from what was read last."""
        if self._processors[0] < self._read_at:
            self._watch = self._watch or ProcessorWatch()
            workers = self._gone_ms + sum(
                used.processor_ms for _, used in list(self._known.values()) if not used.elsewhere
            )
            (then, before), now = self._processors, time.monotonic()
            self._processors = (now, self._watch.look(workers))
            if before.allowed:
                self._others = (self._processors[1].others_ms - before.others_ms) / 1e3 / (now - then)
        return self._processors[1]

    def others(self) -> float:
        """Processors that others took between the last two looks."""
        return self._others
