"""Answers about the past: any range, in at most as many buckets as asked for, from the finest tier that is
cheap.

Rows that are read are few whatever the range: the finest tier is taken that covers the start of the range
and has at most `ROWS_PER_POINT` rows per point asked for. Samples that no compaction has reached yet are
appended from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.insight.rates import FIELDS
from penstock.protocol import History

from ..settings import Retention
from .database import HistoryAsked
from .samples import TIERS, Bucket, Sample, from_rows, regroup, single

ROWS_PER_POINT = 3
CHEAP_ROWS = 6000
"""More rows than this are read only if that many points are asked for."""


class Chunks(Protocol):
    """The chunks of one loader."""

    def oldest(self, tier: int) -> float | None:
        """When the first chunk of a tier begins."""

    def between(self, tier: int, start: float, end: float, until: float) -> Iterable[bytes]:
        """Buckets of the chunks that begin from `start` to `end` and before `until`, in order."""


def read_history(chunks: Chunks, recent: Sequence[Sample], asked: HistoryAsked, retention: Retention) -> History:
    """`recent` are the samples that are in no chunk, and must be of no later moment than the chunks: those made of them
    since then are left out.
    """
    start, end, points = asked.start, asked.end, asked.points
    oldest = _oldest(chunks, recent)
    if oldest is None:
        return _columns(asked.loader, end if start is None else start, end, 0.0, [])
    # A range that begins before the first record is cut, so that the points are spent where there is data.
    first = oldest if start is None else start
    covered_from = max(first, oldest)
    span = max(0.0, end - covered_from)
    most = max(points, min(points * ROWS_PER_POINT, CHEAP_ROWS))
    tier = _choose(retention, asked.now - covered_from, span / most, asked.interval)
    width = TIERS[tier]
    until = min((sample.at for sample in recent), default=float("inf"))
    # Chunks start at their first row and hold about a minute: look that much further back.
    rows = chunks.between(tier, first - 300.0, end, until)
    buckets = [bucket for blob in rows for bucket in from_rows(blob)]
    buckets.extend(single(sample) for sample in recent)
    # A bucket that begins before the range may reach into it.
    buckets = [bucket for bucket in buckets if (bucket.at >= first or bucket.at + width > first) and bucket.at <= end]
    buckets.sort(key=lambda bucket: bucket.at)
    if width:
        buckets = regroup(buckets, width)
    if len(buckets) > points:
        reach = buckets[-1].at - buckets[0].at
        width = max(width, reach / points * (1 + 1e-9))  # a hair wider, or the last one would be a bucket more
        buckets = regroup(buckets, width, buckets[0].at)
    return _columns(asked.loader, first, end, width, buckets)


def _oldest(chunks: Chunks, recent: Sequence[Sample]) -> float | None:
    """Tier by tier, because then each is one step in the index."""
    found = [sample.at for sample in recent]
    found.extend(start for tier in range(len(TIERS)) if (start := chunks.oldest(tier)) is not None)
    return min(found, default=None)


def _choose(retention: Retention, age: float, least: float, interval: float) -> int:
    """The finest tier that reaches back `age` seconds and has at most one row in `least` seconds."""
    for tier, kept in enumerate((retention.samples, retention.ten_seconds, retention.minutes)):
        # A chunk goes when its first row is too old; a minute of slack keeps the edge of the range filled.
        if age <= kept + 60.0 and (TIERS[tier] or interval) >= least:
            return tier
    return len(TIERS) - 1


def _columns(loader: str, start: float, end: float, width: float, buckets: list[Bucket]) -> History:
    half = width / 2
    at = [bucket.at + half for bucket in buckets]
    if not buckets:
        return History(loader, start, end, width, at, {name: [] for name in FIELDS})
    mean = dict(zip(FIELDS, map(list, zip(*[b.mean for b in buckets], strict=True)), strict=True))
    if all(bucket.count == 1 for bucket in buckets):
        return History(loader, start, end, width, at, mean)
    low = dict(zip(FIELDS, map(list, zip(*[b.low for b in buckets], strict=True)), strict=True))
    high = dict(zip(FIELDS, map(list, zip(*[b.high for b in buckets], strict=True)), strict=True))
    return History(loader, start, end, width, at, mean, low, high)
