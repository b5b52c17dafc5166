"""Memory of this process in which batches from other machines land, and stay until training has done with them.

A piece belongs to the batch that it was given to for as long as anything refers to the buffer that was made for it: the
frame that is being received, the payload, the last tensor. When that buffer dies, wherever that happens, the piece is
free, and the next batch lands where pages are warm. The memory is private: a forked copy of training keeps what it saw.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from typing import Any

from ...memory import lock
from ...signals import emptied
from ..codec import Encoded, decode
from ..crew import Memory

SMALLEST = 1 << 16
HUGE = 1 << 21
"""Pieces of this size and above are made of huge pages, where the system has some."""


class Piece:
    """A piece of memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.kind: Any = type("Landed", (ctypes.c_char * size,), {})  # with weak references
        self.locked = False

    def lock(self) -> bool:
        if not self.locked:
            self.locked = lock(ctypes.addressof(self.kind.from_buffer(self.memory)), self.size)
        return self.locked


class _Lease(weakref.ref[Any]):
    """Ends with the buffer. What is called then is the append of a deque, which takes no lock."""

    __slots__ = ("piece",)
    piece: Piece


class Landed:
    """A place for the contents of one batch."""

    __slots__ = ("buffer", "piece", "view")

    def __init__(self, piece: Piece, nbytes: int) -> None:
        self.piece = piece
        self.buffer = piece.kind.from_buffer(piece.memory)
        self.view = memoryview(self.buffer).cast("B")[:nbytes]


class Landing:
    """All pieces of a crew. Only the conductor's thread asks for some."""

    def __init__(self) -> None:
        self._free: dict[int, list[Piece]] = {}
        """By size."""
        self._free_count = 0
        self._leases: dict[int, _Lease] = {}
        """By their ids."""
        self._ended: deque[_Lease] = deque()
        self._bytes = 0

    def place(self, nbytes: int) -> Landed:
        """Memory for so many bytes: the smallest free piece that holds them and is not much too large, or a new one."""
        self._collect()
        piece = self._take(_size_class(nbytes))
        landed = Landed(piece, nbytes)
        lease = _Lease(landed.buffer, self._ended.append)
        lease.piece = piece
        self._leases[id(lease)] = lease
        return landed

    def limit(self, nbytes: int) -> None:
        """Free pieces may be kept as long as all take no more than this."""
        self._collect()
        while self._free and self._bytes > nbytes:
            self._bytes -= self._pop(next(iter(self._free))).size

    def memory(self) -> Memory:
        """Any thread may ask."""
        free = self._free_count + len(self._ended)
        return Memory(max(len(self._leases) - len(self._ended), 0), free, self._bytes)

    def _take(self, wanted: int) -> Piece:
        fitting = wanted if wanted in self._free else None
        if fitting is None:
            fitting = min((size for size in self._free if wanted < size <= 2 * wanted), default=None)
        if fitting is not None:
            return self._pop(fitting)
        self._bytes += wanted
        return Piece(wanted)

    def _pop(self, size: int) -> Piece:
        """The free piece of this size that was used last: its pages are warm."""
        pieces = self._free[size]
        piece = pieces.pop()
        if not pieces:
            del self._free[size]
        self._free_count -= 1
        return piece

    def _collect(self) -> None:
        for lease in emptied(self._ended):
            del self._leases[id(lease)]
            self._free.setdefault(lease.piece.size, []).append(lease.piece)
            self._free_count += 1


class LandedPayload:
    """A batch whose contents have landed."""

    __slots__ = ("_encoded", "_landed", "nbytes", "size")

    def __init__(self, encoded: Encoded, landed: Landed) -> None:
        self._encoded = encoded
        self._landed: Landed | None = landed
        self.nbytes = encoded.nbytes
        self.size = encoded.nbytes + len(encoded.structure)

    def open(self, hold_bytes: int) -> Any:  # noqa: ARG002
        """Tensors are views of the memory, which is nobody else's."""
        if self._landed is None:
            raise RuntimeError("the batch was discarded")
        return decode(self._encoded.structure, self._encoded.buffers, self._landed.buffer)

    def lock(self) -> bool:
        return self._landed is not None and self._landed.piece.lock()

    def discard(self) -> None:
        self._landed = None


def _size_class(nbytes: int) -> int:
    """Rounded up by at most an eighth, so that batches of nearly the same size share pieces."""
    step = max(1 << max(nbytes.bit_length() - 4, 0), mmap.PAGESIZE)
    return max(-(-nbytes // step) * step, SMALLEST)
