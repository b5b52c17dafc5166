"""Packing and bucketing of rates: what goes in comes out, wherever it is cut."""

from __future__ import annotations

import math
import struct

from hypothesis import given
from hypothesis import strategies as st
from penstock.protocol import Rates
from penstock_dashboard.store.samples import (
    WIDTH,
    Bucket,
    Sample,
    from_rows,
    merge,
    pack,
    regroup,
    single,
    to_rows,
    unpack,
)

number = st.floats(0, 2.0**40, width=32)
rows = st.lists(st.tuples(st.floats(0, 600, width=32), number), min_size=1, max_size=60)


def buckets(values: list[tuple[float, float]]) -> list[Bucket]:
    samples = [Sample(at, pack(Rates(batches=value))) for at, value in sorted(values)]
    return [single(sample) for sample in samples]


@given(st.lists(number, min_size=WIDTH, max_size=WIDTH))
def test_rates_survive_packing(values: list[float]) -> None:
    assert list(unpack(pack(Rates(*values)))) == values


def test_numbers_beyond_32_bits_are_capped_rather_than_lost() -> None:
    assert all(math.isfinite(value) for value in unpack(pack(Rates(batches=1e300))))


@given(rows, st.sampled_from([10.0, 60.0]))
def test_a_spike_survives_every_bucket(values: list[tuple[float, float]], width: float) -> None:
    grouped = regroup(buckets(values), width)
    assert max(bucket.high[0] for bucket in grouped) == max(value for _, value in values)
    assert min(bucket.low[0] for bucket in grouped) == min(value for _, value in values)
    assert sum(bucket.count for bucket in grouped) == len(values)


@given(rows, st.integers(0, 60))
def test_a_stretch_may_be_cut_anywhere(values: list[tuple[float, float]], cut: int) -> None:
    whole = buckets(values)
    in_parts = regroup(whole[:cut], 10.0) + regroup(whole[cut:], 10.0)
    again = regroup(in_parts, 10.0)
    direct = regroup(whole, 10.0)
    assert [(b.at, b.count, b.low, b.high) for b in again] == [(b.at, b.count, b.low, b.high) for b in direct]
    for one, other in zip(again, direct, strict=True):
        assert math.isclose(one.mean[0], other.mean[0], rel_tol=1e-6, abs_tol=1e-6)


@given(rows)
def test_rows_come_back_as_they_were_stored(values: list[tuple[float, float]]) -> None:
    stored = [merge(0.0, buckets(values)), *buckets(values)]
    for before, after in zip(stored, from_rows(to_rows(stored)), strict=True):
        assert (after.at, after.count, after.low, after.high) == (
            before.at,
            before.count,
            before.low,
            before.high,
        )


def test_rows_of_an_older_version_read_as_zero_where_they_are_short() -> None:
    old = struct.pack("<dIH", 5.0, 1, 3) + struct.pack("<3f", 1.0, 2.0, 3.0)
    (bucket,) = from_rows(old)
    assert bucket.mean == (1.0, 2.0, 3.0, *(0.0,) * (WIDTH - 3))
    assert unpack(struct.pack("<2f", 1.0, 2.0)) == (1.0, 2.0, *(0.0,) * (WIDTH - 2))
