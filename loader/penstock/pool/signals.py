"""Waking one thread from another, as cheaply as Python allows."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TypeVar

T = TypeVar("T")


def emptied(items: deque[T]) -> list[T]:
    """Take everything out of a deque, whoever else does the same."""
    taken: list[T] = []
    with contextlib.suppress(IndexError):
        while True:
            taken.append(items.popleft())
    return taken


class Signal:
    """Wakes the iterating thread. Setting it costs nothing while nobody waits."""

    def __init__(self) -> None:
        self.waiting = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def prepare(self) -> None:
        """Say that a wait follows. Whoever waits looks once more at what it waits for between the two."""
        self.waiting = True

    def wait(self, seconds: float | None) -> None:
        """Return after `set`, after the time, or now and then for no reason."""
        self._lock.acquire(timeout=-1 if seconds is None else max(seconds, 0.0))
        self.waiting = False

    def set(self) -> None:
        if self.waiting:
            self.waiting = False
            with contextlib.suppress(RuntimeError):  # already released
                self._lock.release()


class Latch:
    """Set once and for all; anybody may wait for it.

    It takes the place of `threading.Event` where a signal handler may raise in whoever waits. An event is written in
    Python around a lock: an exception that comes when the lock was just taken leaves it locked, and then whoever sets
    the event never returns. Here such an exception can cost others that wait no more than `LOOK` seconds.
    """

    LOOK = 0.1
    """Seconds between two looks of whoever waits."""

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # set before
            self._lock.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Return when it is set, or after so many seconds; whether it is set."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._is_set:
            left = self.LOOK if deadline is None else min(deadline - time.monotonic(), self.LOOK)
            if left <= 0:
                break
            if self._lock.acquire(timeout=left):
                self._lock.release()
        return self._is_set


class Doorbell:
    """Wakes the conductor, which sleeps in poll(). Ringing costs nothing while it is awake."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
        self._rung = False
        self._closed = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            try:
                # The lock, because somebody else may have got the number of a descriptor that was closed.
                with self._lock, contextlib.suppress(BlockingIOError):
                    if not self._closed:
                        os.write(self._write, b"\1\0\0\0\0\0\0\0")
            except BaseException:  # Ctrl-C before it rang: the next one must not take it for rung
                self._rung = False
                raise

    def clear(self) -> None:
        """Forget the rings so far. What they were about is looked at after this."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        self._rung = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self._read)
            if self._write != self._read:
                os.close(self._write)
