"""Anonymous shared memory that two processes map and that no name and no descriptor keeps alive.

A segment is made from a memfd, which neither shows in /dev/shm nor counts against its size. Where the system has none
(macOS), or forbids it, it is made from POSIX shared memory whose name is removed at once, and where that is not to be
had or too small, from a temporary file without a name. It is mapped through libc rather than through `mmap.mmap`,
because the latter keeps a duplicate of the descriptor open for as long as the mapping lives: with one segment per
batch in flight that would cost a descriptor a batch, and descriptors are what `ulimit -n` is short of.

To touch fresh pages one by one costs more than all the rest that is done with a batch (measured with 38 MB: 21.9 ms,
and 0.9 ms when they are warm). So a segment that will be filled is `take`n from the system in one call (8.4 ms) and its
pages are mapped in another (`Mapping.populate`, 2.4 ms).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import secrets
import sys
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

_posixshmem: Any = None
with contextlib.suppress(ImportError):
    _posixshmem = importlib.import_module("_posixshmem")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value

_POPULATE_READ = 22
"""Linux 5.14 and later: map what is there. Pages of shared memory are writable then."""

_STRIDE = 4 << 20
"""Bytes that are taken from the system at a time: a call that a signal interrupts undoes what it did."""

HAS_MLOCK = hasattr(_libc, "mlock")
if HAS_MLOCK:
    _libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def create_segment(size: int) -> int:
    """Return a descriptor of `size` bytes of shared memory; the caller closes it."""
    *others, last = SOURCES
    for make in others:
        with contextlib.suppress(OSError):
            return make(size)
    return last(size)


def take(descriptor: int, nbytes: int) -> None:
    """Have the system provide the first `nbytes` of a segment now. Where it cannot, they are provided when touched."""
    if hasattr(os, "posix_fallocate"):
        with contextlib.suppress(OSError):
            for start in range(0, nbytes, _STRIDE):
                os.posix_fallocate(descriptor, start, min(_STRIDE, nbytes - start))


def _from_memfd(size: int) -> int:
    return _sized(os.memfd_create("penstock", os.MFD_CLOEXEC), size)


def _from_shm(size: int) -> int:
    name = f"/penstock-{secrets.token_hex(8)}"  # macOS takes 31 characters at the most
    descriptor = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    _posixshmem.shm_unlink(name)
    return _sized(descriptor, size, reserve=True)


def _from_file(size: int) -> int:
    descriptor, path = tempfile.mkstemp(prefix="penstock-")
    os.unlink(path)  # noqa: PTH108
    return _sized(descriptor, size, reserve=True)


def _sized(descriptor: int, size: int, *, reserve: bool = False) -> int:
    """Give a segment its size. Where the space may be short it is taken now: later, a lack of it kills with SIGBUS."""
    try:
        os.ftruncate(descriptor, size)
        if reserve and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


SOURCES: tuple[Callable[[int], int], ...] = (
    *([_from_memfd] if hasattr(os, "memfd_create") else []),
    *([_from_shm] if _posixshmem is not None else []),
    _from_file,
)
"""The ways that this system has of making a segment, the best first."""


class Mapping:
    """A segment mapped into this process. It is unmapped when the last object made by `export` is gone."""

    def __init__(self, descriptor: int, size: int) -> None:
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        if address is None or address == _MAP_FAILED:
            errno = ctypes.get_errno()
            raise OSError(errno, f"cannot map {size} bytes of shared memory: {os.strerror(errno)}")
        self.address: int = address
        self.size = size
        self.locked = False
        self._view: Any = type("View", (ctypes.c_char * size,), {})
        weakref.finalize(self, _libc.munmap, address, size).atexit = False

    def export(self) -> ctypes.Array[ctypes.c_char]:
        """Return an object with the buffer protocol over the whole segment, which keeps the mapping alive.

        Whatever is built on that buffer refers to that very object, so a weak reference to it tells when the last
        tensor or array in the segment has died.
        """
        view: ctypes.Array[ctypes.c_char] = self._view.from_address(self.address)
        view.mapping = self  # type: ignore[attr-defined]
        return view

    def populate(self, nbytes: int) -> None:
        """Map the pages of the first `nbytes` now, if the system can, rather than one by one when they are touched."""
        if sys.platform == "linux":
            _libc.madvise(self.address, min(nbytes, self.size), _POPULATE_READ)

    def lock(self) -> bool:
        """Keep the segment in physical memory; False if the limits or the system do not allow it."""
        if not self.locked and HAS_MLOCK:
            self.locked = _libc.mlock(self.address, self.size) == 0
        return self.locked


def lock(address: int, size: int) -> bool:
    """Keep so many bytes of this process in physical memory; False if the limits or the system do not allow it."""
    return HAS_MLOCK and _libc.mlock(address, size) == 0
