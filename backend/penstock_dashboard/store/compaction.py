"""Once a minute samples become chunks in every tier. Pure: when, which, and what they become."""

from __future__ import annotations

from collections.abc import Iterator

from .batch import ROW
from .samples import TIERS, Sample, regroup, single, to_rows

INTERVAL = 60.0
"""Seconds between two compactions."""
GRACE = 2.0
"""Seconds after a full minute in which its last samples may still come."""

ROWS_PER_CHUNK = 2000
"""Samples that are taken at a time. At the usual rate there are 300 in a minute; a loader may send many more."""

Samples = dict[int, list[Sample]]
"""Loader → its samples."""
Chunk = tuple[int, int, float, float, bytes, int]
"""Tier, loader, first moment, when it was stored, buckets, owner."""


def due(last: float, now: float) -> bool:
    """Just after each full minute: then chunks hold whole minutes, and hardly a bucket is cut in two."""
    return now // INTERVAL != last // INTERVAL and now % INTERVAL >= GRACE


def split(recent: Samples, boundary: float) -> tuple[Samples, Samples]:
    """Samples before a moment, and the others, loader by loader."""
    before = {key: [s for s in samples if s.at < boundary] for key, samples in recent.items()}
    after = {key: [s for s in samples if s.at >= boundary] for key, samples in recent.items()}
    return {k: v for k, v in before.items() if v}, {k: v for k, v in after.items() if v}


def in_parts(done: Samples, most: int) -> Iterator[Samples]:
    """Loaders in groups, each small enough for one transaction of so many bytes."""
    part: Samples = {}
    size = 0
    for key, samples in done.items():
        part[key] = samples
        size += size_of(samples)
        if size >= most:
            yield part
            part, size = {}, 0
    if part:
        yield part


def size_of(samples: list[Sample]) -> int:
    """Bytes of chunks that samples become, about: every tier has a row, and coarse buckets are three times as wide."""
    return 2 * sum(len(sample.rates) + 14 for sample in samples) + len(TIERS) * ROW


def chunks_of(key: int, samples: list[Sample], owner: int, now: float) -> Iterator[Chunk]:
    """What one loader's samples become."""
    ordered = sorted(samples, key=lambda sample: sample.at)
    for first in range(0, len(ordered), ROWS_PER_CHUNK):
        buckets = [single(sample) for sample in ordered[first : first + ROWS_PER_CHUNK]]
        for tier, width in enumerate(TIERS):
            rows = regroup(buckets, width) if width else buckets
            yield tier, key, rows[0].at, now, to_rows(rows), owner
