"""What the system says of memory and processor time: of workers, of training, and of the processors that they share.

Everything is read at most once a second, with as few system calls as can be: each lets go of the interpreter lock, and
getting it back interrupts training.
"""

from __future__ import annotations

import functools
import os
import time
from typing import NamedTuple

from ..budget import memory_limits
from ..protocol import Processors
from .processors import ProcessorWatch

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_AGE = 1.0
"""Seconds for which nothing is read again."""


class Used(NamedTuple):
    """By one process so far. Zeros for a process that is gone, or where there is no /proc."""

    resident: int = 0
    """Bytes."""
    processor_ms: int = 0
    """Processor time of all its threads."""
    queued_ms: int = 0
    """Time in which its main thread was ready to run and waited for a processor."""


class Usage:
    def __init__(self) -> None:
        self._known: dict[int, tuple[float, Used]] = {}
        self._read_at = -_AGE
        """When processes were read last: all of them together, so that their sums are of one moment."""
        self._gone_ms = 0
        """Processor time of processes that were looked at and are gone."""
        self._budget = (-_AGE, 0)
        self._watch: ProcessorWatch | None = None
        self._processors = (-_AGE, Processors())

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

    def of(self, pid: int) -> Used:
        known = self._known.get(pid)
        if known is None or known[0] < self._read_at:
            known = self._known[pid] = (time.monotonic(), _read(pid))
        return known[1]

    def keep(self, pids: set[int]) -> None:
        """Forget all others."""
        for pid in self._known.keys() - pids:
            gone = self._known.pop(pid, None)
            if gone is not None:
                self._gone_ms += gone[1].processor_ms

    def processors(self) -> Processors:
        """Those that this process may use; what is known of its workers' time is taken from what was read last."""
        if self._processors[0] < self._read_at:
            self._watch = self._watch or ProcessorWatch()
            workers = self._gone_ms + sum(used.processor_ms for _, used in list(self._known.values()))
            self._processors = (time.monotonic(), self._watch.look(workers))
        return self._processors[1]


@functools.cache
def untold() -> tuple[str, ...]:
    """Fields of a snapshot, as in `protocol.Unknown`, that this system does not tell."""
    needed = {
        "/proc/self/stat": ("workers.rss", "workers.cpu_ms"),
        "/proc/self/schedstat": ("workers.queued_ms",),
        "/proc/stat": ("processors.others_ms",),
    }
    return tuple(name for path, names in needed.items() if not _is_readable(path) for name in names)


def _is_readable(path: str) -> bool:
    try:
        return bool(_read_file(path))
    except OSError:
        return False


def _read(pid: int) -> Used:
    try:
        fields = _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        resident, spent = int(fields[21]) * _PAGE, int((int(fields[11]) + int(fields[12])) * _TICK_MS)
    except (OSError, IndexError, ValueError):
        return Used()
    try:
        return Used(resident, spent, int(_read_file(f"/proc/{pid}/schedstat").split()[1]) // 1_000_000)
    except (OSError, IndexError, ValueError):
        return Used(resident, spent)


def _read_file(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
