"""What making a batch takes of processors, measured by the worker that makes it.

A look costs about 2 µs: processor time of the process (threads that a dataset starts are its own), or of the thread
where the worker is one, and the time that this thread spent ready to run in the system's run queue. So not every batch
is measured where they are short: one every `APART` ns at the most, which is a thousandth of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

APART = 4_000_000
"""ns between two batches that are measured, at the least."""


class Effort:
    """Told when a batch is begun and when it is made, of those that are to be measured. For one thread."""

    def __init__(self, processor_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._processor_ns = processor_ns
        self.processor = -1
        """Processor time of the batch made last, ns; -1: it was not measured."""
        self.queued = -1
        """Time for which it waited for a processor, ns; -1: not measured, or the system does not say."""
        self._file: int | None = None
        self.due = 0
        """From when on the next batch is to be measured, ns of the monotonic clock."""
        self.under_way = False
        """A batch is being measured."""
        self._before = (0, 0)

    def start(self) -> None:
        """A batch is begun that is to be measured."""
        self._before = self._look()
        self.under_way = True

    def end(self, now: int) -> None:
        """It is made, or has failed. `now` is ns of the monotonic clock."""
        processor, queued = self._look()
        self.processor = processor - self._before[0]
        self.queued = queued - self._before[1] if queued >= 0 else -1
        self.under_way = False
        self.due = now + APART

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file is not None and self._file >= 0:
            close(self._file)

    def _look(self) -> tuple[int, int]:
        if self._file is None:
            self._file = _open()
        queued = -1 if self._file < 0 else int(os.pread(self._file, 64, 0).split()[1])
        return self._processor_ns(), queued


def _open() -> int:
    """This thread's statistics, in its own process: not before it was forked."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
