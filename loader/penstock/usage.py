"""What the system says of one process: memory and processor time. With as few system calls as can be: each lets go of
the interpreter lock, and getting it back interrupts training.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """By one process so far. Zeros for a process that is gone, or where there is no /proc."""

    resident: int = 0
    """Bytes."""
    processor_ms: int = 0
    """Processor time of all its threads."""
    queued_ms: int = 0
    """Time in which its main thread was ready to run and waited for a processor."""


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


def used_by(pid: int) -> Used:
    """What a process has used so far, by now."""
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
