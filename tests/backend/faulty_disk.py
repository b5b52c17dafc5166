"""A disk that fails or fills at the n-th write, for SQLite in this process.

SQLite lets programs put functions of their own in the place of the system's (`xSetSystemCall`), which is how its own
tests do it: so the real database, the real log and the real thread run, and only the kernel's answer is made up.
"""

from __future__ import annotations

import _sqlite3  # type: ignore[import-not-found,unused-ignore]
import contextlib
import ctypes
import errno
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_longlong, c_size_t, c_ssize_t, c_void_p
from typing import Any, Literal

Fault = Literal["fills", "fails", "fails once"]

_libc = ctypes.CDLL(None, use_errno=True)
_write = CFUNCTYPE(c_ssize_t, c_int, c_void_p, c_size_t, c_longlong, use_errno=True)
_truncate = CFUNCTYPE(c_int, c_int, c_longlong, use_errno=True)
_libc.pwrite.argtypes = [c_int, c_void_p, c_size_t, c_longlong]
_libc.pwrite.restype = c_ssize_t
_libc.ftruncate.argtypes = [c_int, c_longlong]


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, version 3."""


_set = CFUNCTYPE(c_int, POINTER(_Vfs), c_char_p, c_void_p)
_Vfs._fields_ = [
    ("version", c_int),
    ("file_size", c_int),
    ("path_size", c_int),
    ("next", c_void_p),
    ("name", c_char_p),
    ("data", c_void_p),
    *((f"method{n}", c_void_p) for n in range(13)),
    ("set_system_call", _set),
]


class FaultyDisk:
    def __init__(self, nth: int, fault: Fault) -> None:
        self.writes = 0
        """Writes so far, those that failed included."""
        self._nth = nth
        self._fault = fault

    def _refuses(self) -> bool:
        self.writes += 1
        if self.writes < self._nth or (self._fault == "fails once" and self.writes > self._nth):
            return False
        ctypes.set_errno(errno.ENOSPC if self._fault == "fills" else errno.EIO)
        return True

    @contextlib.contextmanager
    def in_place(self) -> Iterator[FaultyDisk]:
        def write(file: int, data: int, size: int, offset: int) -> int:
            return -1 if self._refuses() else int(_libc.pwrite(file, data, size, offset))

        def truncate(file: int, size: int) -> int:
            return -1 if self._refuses() else int(_libc.ftruncate(file, size))

        mine: dict[bytes, Any] = {
            b"pwrite": _write(write),
            b"pwrite64": _write(write),
            b"ftruncate": _truncate(truncate),
        }
        sqlite = ctypes.CDLL(_sqlite3.__file__)
        sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
        vfs = sqlite.sqlite3_vfs_find(None)
        for name, function in mine.items():
            vfs.contents.set_system_call(vfs, name, ctypes.cast(function, c_void_p))
        try:
            yield self
        finally:
            for name in mine:
                vfs.contents.set_system_call(vfs, name, None)
