"""How long single samples take: a sketch from counts of their times, and the slowest ones by index."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..costs import COST_BUCKETS, Slow, cost_of_bucket
from ..profiling.sightings import Sightings
from ..protocol import SampleCost, SlowSample
from ..stack import brief, cut

PUBLISHED_STACKS = 8
"""How many of the slowest samples have their stack in a published snapshot,"""
LONGEST_STACK = 400
"""and how many characters of it."""


class Passage(NamedTuple):
    """When a batch passed its phases, ns of the monotonic clock, and at which worker."""

    worker: int
    """Id of the worker that made it."""
    start: int
    """When the worker began with it."""
    fetched: int
    """When all its samples were there."""
    collated: int
    """When it was a batch."""
    sent: int
    """When it was where training finds it."""


class _Slow:
    """One that may be told; its stack comes later."""

    __slots__ = ("began", "ended", "sample")

    def __init__(self, sample: SlowSample, ended: int, nanoseconds: int) -> None:
        self.sample = sample
        self.began, self.ended = ended - nanoseconds, ended

    def attach(self, stack: str) -> None:
        self.sample = replace(self.sample, stack=cut(stack))


class SlowestSamples:
    """The slowest samples of an epoch: as many as are recorded, and in any case the very slowest."""

    def __init__(self, record: int = 0, batch_size: int | None = 0) -> None:
        """`batch_size`: None if every sample is its own batch, and 0 if the batches are not all of one size."""
        self._record = record
        self._most = max(record, 1)
        self._batch_size = batch_size
        self._heap: list[tuple[int, str, int, _Slow]] = []
        self._added = 0
        """No two entries are compared further than by the number of those before them."""

    def wants(self, nanoseconds: int) -> bool:
        """Would a sample that took so long be among the slowest?"""
        return bool(nanoseconds) and (len(self._heap) < self._most or nanoseconds > self._heap[0][0])

    def add_batch(
        self,
        batch: int,
        shard: int,
        indices: Any,
        slow: Slow,
        passage: Passage | None = None,
        sightings: Sightings | None = None,
    ) -> None:
        """`shard`: -1 if the samples have indices. `sightings`: where to ask for their stacks, if they are recorded."""
        place, nanoseconds, more = slow
        for where, taken, ended in more or ((place, nanoseconds, 0),):
            if self.wants(taken):
                added = self.add(taken, self.name(batch, shard, indices, where), batch, passage, ended)
                if sightings is not None and passage is not None and ended:
                    sightings.ask(passage.worker, added.began, added.ended, added.attach)

    def add(
        self, nanoseconds: int, name: str, batch: int = -1, passage: Passage | None = None, ended: int = 0
    ) -> _Slow:
        """It is among the slowest so far."""
        sample = SlowSample(name[:256], nanoseconds // 1000, batch)
        if passage is not None:
            fetch, collate, send = (max(after - before, 0) // 1000 for before, after in pairwise(passage[1:]))
            sample = SlowSample(sample.index, sample.us, batch, passage.worker, fetch, collate, send)
        slow = _Slow(sample, ended, nanoseconds)
        self._added += 1
        entry = nanoseconds, sample.index, self._added, slow
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)
        return slow

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

    def ranked(self) -> list[SlowSample]:
        """The slowest first."""
        return [slow.sample for *_, slow in sorted(self._heap, reverse=True)]

    def recorded(self) -> list[SlowSample]:
        """Those that have a name, if they were asked for."""
        return [sample for sample in self.ranked() if sample.index] if self._record else []


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
    index, longest = (ranked[0].index, ranked[0].us) if ranked else ("", 0)
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


def published(slowest: list[SlowSample]) -> list[SlowSample]:
    """What travels with every snapshot: stacks are long, so only those of the first few, and of them what matters."""
    return [
        replace(sample, stack=brief(sample.stack)[:LONGEST_STACK] if place < PUBLISHED_STACKS else "")
        for place, sample in enumerate(slowest)
    ]
