"""On PYTHONPATH, this makes every Python process, spawned ones too, find what macOS has and no more."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import pathlib
import select
import signal
import socket
from typing import Any

MISSING: dict[Any, tuple[str, ...]] = {
    os: (
        "memfd_create",
        "pidfd_open",
        "eventfd",
        "eventfd_read",
        "eventfd_write",
        "posix_fallocate",
        "sched_getaffinity",
    ),
    signal: ("pidfd_send_signal", "SIGRTMIN", "SIGRTMAX"),
    socket: ("MSG_CMSG_CLOEXEC",),
    select: ("epoll",),
}
MISSING_IN_LIBC = ("prctl", "mlock")

for module, names in MISSING.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in MISSING_IN_LIBC:
            raise AttributeError(name)
        return super().__getattr__(name)


def without_proc(open_file: Any) -> Any:
    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        if str(file).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return open_file(file, *arguments, **named)

    return opened


ctypes.CDLL = Library  # type: ignore[misc]
pathlib.Path.open = without_proc(pathlib.Path.open)  # type: ignore[method-assign]
builtins.open = io.open = without_proc(io.open)
os.open = without_proc(os.open)
