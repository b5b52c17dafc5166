"""How long single samples take: a sketch from the counts on the board, and the slowest ones by index."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from operator import add

from ..pool.board import COST_BUCKETS, cost_of_bucket
from ..protocol import SampleCost


class SlowestSamples:
    """The slowest samples of an epoch. With `most` = 0 only the very slowest is kept."""

    def __init__(self, most: int = 0) -> None:
        self._most = max(most, 1)
        self._heap: list[tuple[int, str]] = []

    def add(self, nanoseconds: int, index: object) -> None:
        heap = self._heap
        if len(heap) < self._most:
            heapq.heappush(heap, (nanoseconds, str(index)[:256]))
        elif nanoseconds > heap[0][0]:
            heapq.heapreplace(heap, (nanoseconds, str(index)[:256]))

    def ranked(self) -> list[tuple[str, int]]:
        """(index, µs), the slowest first."""
        return [(index, nanoseconds // 1000) for nanoseconds, index in sorted(self._heap, reverse=True)]


def sketch(counts: Iterable[list[int]], slowest: SlowestSamples) -> SampleCost:
    """Sum the workers' counts up and read quantiles off them."""
    total = [0] * COST_BUCKETS
    for row in counts:
        total = list(map(add, total, row))
    number = sum(total)
    ranked = slowest.ranked()
    index, longest = ranked[0] if ranked else ("", 0)
    p50, p95, p99 = (min(_quantile(total, number, share), max(longest, 1)) for share in (0.5, 0.95, 0.99))
    return SampleCost(number, p50, p95, p99, longest, index)


def _quantile(counts: list[int], number: int, share: float) -> int:
    """µs."""
    wanted, seen = share * number, 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            return cost_of_bucket(bucket) // 1000
    return 0
