"""How long single samples take: a sketch from counts of their times, and the slowest ones by index."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from operator import add
from typing import Any

from ..costs import COST_BUCKETS, Slow, cost_of_bucket
from ..protocol import SampleCost


class SlowestSamples:
    """The slowest samples of an epoch: as many as are recorded, and in any case the very slowest."""

    def __init__(self, record: int = 0, batch_size: int | None = 0) -> None:
        """`batch_size`: None if every sample is its own batch, and 0 if the batches are not all of one size."""
        self._record = record
        self._most = max(record, 1)
        self._batch_size = batch_size
        self._heap: list[tuple[int, str]] = []

    def add_batch(self, batch: int, shard: int, indices: Any, slow: Slow) -> None:
        """`shard`: -1 if the samples have indices."""
        place, nanoseconds, more = slow
        for where, taken in more or ((place, nanoseconds),):
            if taken and (len(self._heap) < self._most or taken > self._heap[0][0]):
                self.add(taken, self.name(batch, shard, indices, where))

    def add(self, nanoseconds: int, name: str) -> None:
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (nanoseconds, name[:256]))
        elif nanoseconds > self._heap[0][0]:
            heapq.heapreplace(self._heap, (nanoseconds, name[:256]))

    def name(self, batch: int, shard: int, indices: Any, place: int) -> str:
        """A sample's index as the sampler gave it; its place in the shard where there is none; "": not known."""
        if place < 0:
            return ""
        if shard >= 0:
            return f"{batch * (self._batch_size or 1) + place} of shard {shard}"
        if self._batch_size is None:
            return _text(indices)
        try:
            return _text(indices[place])
        except Exception:  # a batch sampler of the user's own
            return _text(indices)

    def ranked(self) -> list[tuple[str, int]]:
        """(index, µs), the slowest first."""
        return [(index, nanoseconds // 1000) for nanoseconds, index in sorted(self._heap, reverse=True)]

    def recorded(self) -> list[tuple[str, int]]:
        """Those that have a name, if they were asked for."""
        return [ranked for ranked in self.ranked() if ranked[0]] if self._record else []


class InlineCosts:
    """What the samples of an epoch cost that training loads itself."""

    def __init__(self, record: int, batch_size: int | None) -> None:
        self.slowest = SlowestSamples(record, batch_size)
        self.counts = [0] * COST_BUCKETS

    def sample_cost(self) -> SampleCost:
        return sketch([self.counts], self.slowest)


def _text(index: Any) -> str:
    """What a person may read and a message carry: a file's name need not be valid Unicode, nor have any end."""
    try:
        return str(index)[:256].encode("utf-8", "backslashreplace").decode()[:256]
    except Exception:  # a type of the user's own
        return f"a {type(index).__name__}"


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
