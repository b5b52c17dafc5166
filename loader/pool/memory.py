"""Anonymous shared memory that two processes map and that no name and no descriptor keeps alive.

A segment is made from a memfd, which neither shows in /dev/shm nor counts against its size; where the system has
none, from an unlinked temporary file. It is mapped through libc rather than through `mmap.mmap`, because the latter
keeps a duplicate of the descriptor open for as long as the mapping lives: with one segment per batch in flight that
would cost a descriptor a batch, and descriptors are what `ulimit -n` is short of.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value

_HAS_MEMFD = hasattr(os, "memfd_create")


def create_segment(size: int) -> int:
    """Return a descriptor of `size` bytes of shared memory; the caller closes it."""
    if _HAS_MEMFD:
        descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp(prefix="penstock-")
        os.unlink(path)  # noqa: PTH108
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


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

    def lock(self) -> bool:
        """Keep the segment in physical memory; False if the limits do not allow it."""
        if not self.locked:
            self.locked = _libc.mlock(self.address, self.size) == 0
        return self.locked
