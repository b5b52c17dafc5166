"""A shuffle of 0 … n-1 that is computed, not stored.

A number below n is written as (left, right) on a grid of about √n by √n that holds at least n cells. Each
round adds to one half a keyed hash of the other half, modulo that half's size. A round can be undone,
whatever the hash, so the rounds together permute the cells; a cell outside 0 … n-1 is sent through again
until it lands inside, which keeps the whole a permutation. The grid exceeds n by less than one row, so that
happens to few.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_ODD_1 = np.uint64(0x9E3779B97F4A7C15)
_ODD_2 = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


class KeyedPermutation:
    """The permutation of `length` numbers that `key`, any sequence of integers, selects."""

    def __init__(self, length: int, key: tuple[int, ...]) -> None:
        if not 0 < length < 1 << 63:
            raise ValueError(f"length should be between 1 and 2**63 - 1, but got length={length}")
        # An even number of rows: cycles of odd length alone would only ever make even permutations.
        rows = isqrt(length - 1) // 2 * 2 + 2
        self._length = np.uint64(length)
        self._rows = np.uint64(rows)
        self._columns = np.uint64(-(-length // rows))
        # A small grid mixes slowly, and there rounds cost nothing.
        rounds = 8 if length > 1 << 20 else 24
        self._keys = np.random.SeedSequence(key).generate_state(rounds, np.uint64)

    def block(self, start: int, stop: int) -> list[int]:
        """What stands at the positions from `start` up to `stop`."""
        values: list[int] = self(np.arange(start, stop, dtype=np.uint64)).tolist()
        return values

    def __call__(self, positions: Words) -> Words:
        """What stands at each of `positions`."""
        values = self._shuffle(positions)
        outside = np.flatnonzero(values >= self._length)
        while outside.size:
            values[outside] = self._shuffle(values[outside])
            outside = outside[values[outside] >= self._length]
        return values

    def _shuffle(self, cells: Words) -> Words:
        left, right = np.divmod(cells, self._columns)
        for left_key, right_key in self._keys.reshape(-1, 2):
            _add(left, right, left_key, self._rows)
            _add(right, left, right_key, self._columns)
        left *= self._columns
        left += right
        return left


def _add(half: Words, other: Words, key: np.uint64, size: np.uint64) -> None:
    """Add a keyed hash of `other`, scaled to 0 … size-1, to `half` modulo `size`."""
    mixed = other ^ key
    mixed *= _ODD_1
    mixed ^= mixed >> _HALF
    mixed *= _ODD_2
    mixed >>= _HALF
    mixed *= size
    mixed >>= _HALF
    half += mixed
    # Both terms are below size: where the sum is too, the subtraction wraps round to something greater.
    np.minimum(half, half - size, out=half)
