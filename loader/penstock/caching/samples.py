"""One sample as a record of bytes, and back.

A record is a head, the sample's key, a small pickle with the structure, and the contents of its tensors and arrays one
after the other, aligned: the way of `pool.crews.codec`. What is read from a record has memory of its own, which may be
written to.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from ..pool.crews.codec import Encoder, decode
from ..pool.crews.slots import Slot, SlotStore

Part = bytes | memoryview

_HEAD = Struct("<III")
"""Length of the key, length of the structure, number of buffers."""
_BUFFER = Struct("<QQ")
_ALIGNMENT = 64


class _Scratch(SlotStore):
    """Memory for one sample at a time, in place of slots."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Any = b""

    def find(self, nbytes: int) -> Slot | None:  # noqa: ARG002
        return None

    def acquire(self, nbytes: int, room: int = 0) -> Slot:  # noqa: ARG002
        self.memory = np.zeros(nbytes, dtype=np.uint8)
        return Slot(0, nbytes, self.memory, 0)


class Recorder:
    """Makes records. One thread at a time."""

    def __init__(self) -> None:
        self._scratch = _Scratch()
        self._encoder = Encoder(self._scratch)

    def record(self, key: bytes, sample: object) -> list[Part]:
        """The parts of a record, in order. Raises what pickling raises."""
        try:
            encoded = self._encoder.encode(sample)
            contents: Part = encoded.inline if encoded.slot < 0 else memoryview(self._scratch.memory)
        finally:
            self._scratch.memory = b""
        head = b"".join(
            [
                _HEAD.pack(len(key), len(encoded.structure), len(encoded.buffers)),
                *[_BUFFER.pack(*buffer) for buffer in encoded.buffers],
                key,
                encoded.structure,
            ]
        )
        return [head, bytes(-len(head) % _ALIGNMENT), contents]


def key_of(record: bytes | bytearray) -> bytes:
    """The key that a record, or the beginning of one, is of."""
    length, _, buffers = _HEAD.unpack_from(record)
    start = _HEAD.size + buffers * _BUFFER.size
    return bytes(record[start : start + length])


def sample_of(record: bytearray) -> Any:
    """The sample, whose tensors and arrays are views of the record."""
    key, structure, count = _HEAD.unpack_from(record)
    buffers = [_BUFFER.unpack_from(record, _HEAD.size + place * _BUFFER.size) for place in range(count)]
    start = _HEAD.size + count * _BUFFER.size + key
    end = start + structure
    contents = memoryview(record)[end + -end % _ALIGNMENT :]
    return decode(bytes(memoryview(record)[start:end]), buffers, contents)
