"""Rates as bytes, and as buckets: pure functions, no IO.

A sample is a moment and the fields of `Rates` as 32-bit floats: 7 digits are more than a chart shows, and it is half
the size. One of a loader that looked several times since the one before has its lows and highs, too, after how often
it looked; an odd length tells the two apart. A bucket has the number of samples in it and their mean, least and
greatest values. Fields are only ever added to `Rates`, at its end, so rows of an older version are shorter and the
missing fields read as zero.

A stretch of samples may be cut anywhere: a bucket that straddles the cut is stored as two, and `regroup`
makes one of them again. So nothing has to be remembered from one compaction to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import mul

import msgspec
from penstock.insight.rates import FIELDS
from penstock.protocol import Between, Rates

WIDTH = len(FIELDS)
LARGEST = 3.0e38
"""Near the greatest 32-bit float."""

TIERS: tuple[float, ...] = (0.0, 10.0, 60.0)
"""Seconds that a bucket spans, tier by tier; 0: samples as they came."""

_sample = struct.Struct(f"<{WIDTH}f")
_looks = struct.Struct("<xI")
_head = struct.Struct("<dIH")
_layouts = {size: struct.Struct(f"<{size}f") for size in (WIDTH, 3 * WIDTH)}

Row = tuple[float, ...]


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The rates of one moment."""

    at: float
    rates: bytes
    """As `pack` makes them."""


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """Some samples of one loader, added up."""

    at: float
    """Start of the bucket; of a single sample, its moment."""
    count: int
    mean: Row
    low: Row
    high: Row


def pack(rates: Rates, between: Between | None = None) -> bytes:
    values = msgspec.structs.astuple(rates)
    if between is not None:
        # What came out of the counters belongs to it, whatever the loader says of its looks.
        low = map(min, values, msgspec.structs.astuple(between.low))
        high = map(max, values, msgspec.structs.astuple(between.high))
        return _looks.pack(between.looks) + b"".join([_packed(values), _packed([*low]), _packed([*high])])
    return _packed(values)


def _packed(values: Sequence[float]) -> bytes:
    try:
        return _sample.pack(*values)
    except (OverflowError, struct.error):
        return _sample.pack(*[max(-LARGEST, min(LARGEST, value)) for value in values])


def unpack(blob: bytes) -> Row:
    """The rates of a sample, without lows and highs."""
    if len(blob) % 4:
        blob = blob[_looks.size :][: (len(blob) - _looks.size) // 3]
    if len(blob) == _sample.size:
        return _sample.unpack(blob)
    return _widen(struct.unpack(f"<{len(blob) // 4}f", blob))


def single(sample: Sample) -> Bucket:
    blob = sample.rates
    values = unpack(blob)
    if not len(blob) % 4:
        return Bucket(sample.at, 1, values, values, values)
    (looks,), each = _looks.unpack_from(blob), (len(blob) - _looks.size) // 3
    low, high = (unpack(blob[start : start + each]) for start in (_looks.size + each, _looks.size + 2 * each))
    return Bucket(sample.at, looks, values, low, high)


def merge(at: float, buckets: Sequence[Bucket]) -> Bucket:
    """One bucket out of several."""
    if len(buckets) == 1:
        only = buckets[0]
        return only if only.at == at else Bucket(at, only.count, only.mean, only.low, only.high)
    counts = [bucket.count for bucket in buckets]
    count = sum(counts)
    columns = zip(*[bucket.mean for bucket in buckets], strict=True)
    if count == len(buckets) * counts[0] and min(counts) == counts[0]:
        mean = tuple([sum(column) / len(buckets) for column in columns])
    else:
        mean = tuple([sum(map(mul, column, counts)) / count for column in columns])
    low = tuple(map(min, *[bucket.low for bucket in buckets]))
    high = tuple(map(max, *[bucket.high for bucket in buckets]))
    return Bucket(at, count, mean, low, high)


def regroup(buckets: Iterable[Bucket], width: float, origin: float = 0.0) -> list[Bucket]:
    """Buckets in order of time, as buckets of `width` seconds that start at multiples of it from `origin`."""
    return [
        merge(origin + number * width, list(group))
        for number, group in groupby(buckets, lambda bucket: (bucket.at - origin) // width)
    ]


def to_rows(buckets: Sequence[Bucket]) -> bytes:
    """Buckets as one value for the database. Samples, being their own mean, low and high, are kept once."""
    parts: list[bytes] = []
    for bucket in buckets:
        values = bucket.mean if bucket.count == 1 else bucket.mean + bucket.low + bucket.high
        parts.append(_head.pack(bucket.at, bucket.count, len(values)))
        parts.append(struct.pack(f"<{len(values)}f", *values))
    return b"".join(parts)


def from_rows(blob: bytes) -> list[Bucket]:
    buckets: list[Bucket] = []
    place = 0
    while place < len(blob):
        at, count, size = _head.unpack_from(blob, place)
        place += _head.size
        layout = _layouts.get(size) or struct.Struct(f"<{size}f")
        values: Row = layout.unpack_from(blob, place)
        place += layout.size
        if count == 1:
            mean = _widen(values)
            buckets.append(Bucket(at, 1, mean, mean, mean))
        else:
            each = size // 3
            mean, low, high = values[:each], values[each : 2 * each], values[2 * each :]
            buckets.append(Bucket(at, count, _widen(mean), _widen(low), _widen(high)))
    return buckets


def _widen(values: Row) -> Row:
    """Fields that did not exist when the row was written."""
    return values if len(values) == WIDTH else (values + (0.0,) * WIDTH)[:WIDTH]
