"""A batch from another process: encoded, in a slot or in the message itself."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from .codec import Encoded, decode
from .slots import SlotTable

HELD_AT_LEAST = 4
"""So many batches training may hold without their being copied, whatever their size."""


class Carried(NamedTuple):
    """An encoded batch that is to be sent on."""

    structure: bytes
    """The pickle that refers to the buffers."""
    buffers: list[tuple[int, int]]
    """As in `Encoded`."""
    inline: bytes
    """The contents, if they are small;"""
    view: memoryview | None
    """or else where they are. The memory is the batch's for as long as somebody has this."""
    nbytes: int
    """Bytes of tensors and arrays in it."""


class InlinePayload:
    """In the message itself."""

    __slots__ = ("_encoded", "nbytes", "size")

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded
        self.nbytes = encoded.nbytes
        self.size = encoded.nbytes + len(encoded.structure)

    def open(self, hold_bytes: int) -> Any:  # noqa: ARG002
        encoded = self._encoded
        return decode(encoded.structure, encoded.buffers, bytearray(encoded.inline))

    def carried(self) -> Carried:
        encoded = self._encoded
        return Carried(encoded.structure, encoded.buffers, encoded.inline, None, encoded.nbytes)

    def lock(self) -> bool:
        return False

    def discard(self) -> None:
        """It has no memory but the message's."""


class SlotPayload:
    """In a slot.

    Tensors are views of it as long as training holds few of them. When the slots it holds exceed `hold_bytes`, the
    batch is copied out and its slot goes back at once, so that `list(loader)` does not pin shared memory.
    """

    __slots__ = ("_encoded", "_slots", "lease", "nbytes", "size")

    def __init__(self, slots: SlotTable, encoded: Encoded) -> None:
        self._slots = slots
        self._encoded = encoded
        self.nbytes = encoded.nbytes
        self.size = encoded.nbytes + len(encoded.structure)
        self.lease: ctypes.Array[ctypes.c_char] | None = None
        """Held until training has the batch: a signal handler that raises must not end it."""

    def open(self, hold_bytes: int) -> Any:
        structure, buffers, _, slot, nbytes = self._encoded
        lease = self.lease
        if lease is None:
            lease = self._slots.lease(slot, self)
        held = self._slots.held()
        if held > HELD_AT_LEAST and held * nbytes > hold_bytes:
            end = max(offset + length for offset, length in buffers)
            return decode(structure, buffers, bytearray(memoryview(lease).cast("B")[:end]))
        return decode(structure, buffers, lease)

    def carried(self) -> Carried:
        structure, buffers, _, slot, nbytes = self._encoded
        lease = self._slots.lease(slot, self)
        self.lease = None  # the view is one
        end = max(offset + length for offset, length in buffers)
        return Carried(structure, buffers, b"", memoryview(lease).cast("B")[:end], nbytes)

    def lock(self) -> bool:
        return self._slots.mapping(self._encoded.slot).lock()

    def discard(self) -> None:
        if self.lease is None:
            self._slots.give_back(self._encoded.slot)
