"""Proof of sameness: a rolling digest over what was yielded.

Every batch adds (epoch, batch index, sample indices, seed). Two runs with the same digest saw the same stream,
whatever happened to their pools.
"""

from __future__ import annotations

import marshal
from hashlib import blake2b
from typing import Any

_MARSHAL = 2
"""The last version of the format that does not depend on reference counts."""


class Digest:
    """A rolling digest over everything that was yielded: equal for equal streams."""

    def __init__(self, value: bytes = bytes(16)) -> None:
        self.value = value

    def after(self, epoch: int, batch: int, indices: Any, seed: int) -> bytes:
        """The value with one batch more."""
        try:
            entry = marshal.dumps((epoch, batch, indices, seed), _MARSHAL)
        except ValueError:  # indices of other types than Python's own
            entry = repr((epoch, batch, indices, seed)).encode()
        return blake2b(self.value + entry, digest_size=16).digest()

    def hex(self) -> str:
        return self.value.hex()
