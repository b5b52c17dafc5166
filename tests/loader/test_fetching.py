"""Samples fetched in haste, because they are cheap, are the same as those that are timed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock import fetching
from penstock.fetching import IterableFetcher, MapFetcher
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

sizes = st.integers(0, 300), st.integers(1, 5), st.booleans(), st.integers(0, 300)


@pytest.fixture(autouse=True)
def everything_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "CHEAP", 1 << 60)


class Numbers:
    """Iterable-style and map-style; goes on behind a failure."""

    def __init__(self, length: int, broken: int) -> None:
        self.length, self.broken = length, broken
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.next += 1
        if self.next > self.length:
            raise StopIteration
        return self[self.next - 1]

    def __getitem__(self, index: int) -> int:
        if index == self.broken:
            raise ZeroDivisionError
        return index


def read(fetcher: Any, batches: list[list[int]]) -> list[Any]:
    """What each batch is, or at which sample it fails, up to the end."""
    read: list[Any] = []
    for indices in batches:
        try:
            read.append(fetcher.fetch(indices))
        except ZeroDivisionError:
            read.append("failed")
        except StopIteration:
            read.append("ended")
    return read


@given(*sizes)
def test_streams(length: int, batch: int, drop_last: bool, broken: int) -> None:
    batches = [[0] * batch] * (length // batch + 3)
    theirs = read(_IterableDatasetFetcher(Numbers(length, broken), True, list, drop_last), batches)
    ours = IterableFetcher(Numbers(length, broken), True, drop_last)
    assert read(ours, batches) == theirs


@given(*sizes)
def test_maps(length: int, batch: int, drop_last: bool, broken: int) -> None:
    batches = [list(range(first, min(first + batch, length))) for first in range(0, length, batch)]
    theirs = read(_MapDatasetFetcher(Numbers(length, broken), True, list, drop_last), batches)
    assert read(MapFetcher(Numbers(length, broken), True), batches) == theirs


@pytest.mark.parametrize("make", [lambda data: IterableFetcher(data, True, False), lambda data: MapFetcher(data, True)])
def test_the_sample_that_failed_is_known(make: Any) -> None:
    fetcher = make(Numbers(100, broken=42))
    for first in range(0, 40, 4):
        fetcher.fetch(list(range(first, first + 4)))
    assert not fetcher.stamps, "this was not in haste"
    with pytest.raises(ZeroDivisionError):
        fetcher.fetch([40, 41, 42, 43])
    assert fetcher.position() == 2


@pytest.mark.parametrize("make", [lambda data: IterableFetcher(data, True, False), lambda data: MapFetcher(data, True)])
def test_one_batch_of_sixteen_is_timed(make: Any) -> None:
    fetcher = make(Numbers(1000, broken=-1))
    timed = []
    for first in range(0, 960, 4):
        fetcher.fetch(list(range(first, first + 4)))
        timed.append(len(fetcher.stamps) == 4)
    assert timed == ([True] + [False] * 15) * 15
