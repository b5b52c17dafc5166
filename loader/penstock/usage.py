"""What the system says of one process: memory and processor time. With as few system calls as can be: each lets go of
the interpreter lock, and getting it back interrupts training.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


class Waits(IntEnum):
    """What a process is at, or waits for, at one moment."""

    RUNS = 0
    """On a processor, or ready to be."""
    SLEEP = 1
    """A time that passes for everybody alike."""
    LOCK = 2
    """Something that another process has: a lock or a semaphore."""
    OTHER = 3
    """Storage, the network, another process or thread."""


class Used(NamedTuple):
    """By one process so far. Zeros for a process that is gone, or where there is no /proc."""

    resident: int = 0
    """Bytes."""
    processor_ms: int = 0
    """Processor time of all its threads."""
    queued_ms: int = 0
    """Time in which its main thread was ready to run and waited for a processor."""
    inside: bool = False
    """It is a thread of this process, and its memory is not its own."""
    elsewhere: bool = False
    """It runs on another machine, and takes none of this one's processors or memory."""


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


def waits_for(pid: int) -> Waits | None:
    """What the main thread of a process waits for at this moment; None: the system does not say."""
    try:
        where = _read_file(f"/proc/{pid}/wchan")
    except OSError:
        return None
    if where in (b"", b"0"):
        return Waits.RUNS
    if b"nanosleep" in where:
        return Waits.SLEEP
    if b"lock_inode" in where or b"setlk" in where or b"semtimedop" in where:
        return Waits.LOCK
    if where.startswith(b"futex"):
        return Waits.OTHER if _is_private(pid) else Waits.LOCK
    return Waits.OTHER


def _is_private(pid: int) -> bool:
    """Whether a process that waits for a futex does so for one of its own threads."""
    try:
        return bool(int(_read_file(f"/proc/{pid}/syscall").split()[2], 16) & _PRIVATE)
    except (OSError, IndexError, ValueError):  # it runs again, or may not be looked at so closely
        return False


_PRIVATE = 0x80
"""Among the arguments of the system call `futex`: no other process knows of it."""


def used_by_thread(thread: int) -> Used:
    """What a thread of this process has used, by its native id; its memory is the process's."""
    try:
        times = _read_file(f"/proc/self/task/{thread}/schedstat").split()
        return Used(0, int(times[0]) // 1_000_000, int(times[1]) // 1_000_000, inside=True)
    except (OSError, IndexError, ValueError):
        return Used(inside=True)


@contextmanager
def apart() -> Iterator[None]:
    """What this thread does within it is not training's, though its process's clock counts it."""
    global _ended_ns
    clock = time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else None
    began = time.thread_time_ns()
    with _counting:
        _apart[threading.get_ident()] = clock, began
    try:
        yield
    finally:
        with _counting:
            del _apart[threading.get_ident()]
            _ended_ns += time.thread_time_ns() - began


def training_ns() -> int:
    """Processor time of this process, ns, without that of worker threads."""
    with _counting:
        running = sum(time.clock_gettime_ns(clock) - began for clock, began in _apart.values() if clock is not None)
        return time.process_time_ns() - _ended_ns - running


_counting = threading.Lock()
_apart: dict[int, tuple[int | None, int]] = {}
"""Threads whose time is not training's → their processor clock (None: the system has none), and where it began."""
_ended_ns = 0
"""Time of those that have ended."""


def _forget() -> None:
    """In the child of a fork there are no such threads, and its clock begins at zero."""
    global _counting, _ended_ns
    _counting, _ended_ns = threading.Lock(), 0
    _apart.clear()


os.register_at_fork(after_in_child=_forget)


def _read_file(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
