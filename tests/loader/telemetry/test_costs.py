"""What single samples cost: quantiles within the stated error, and the slowest ones by index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from penstock import fetching
from penstock.costs import COST_BUCKETS, count_batch, count_costs
from penstock.fetching import WARY, MapFetcher, Pace
from penstock.telemetry.costs import InlineCosts, SlowestSamples, sketch
from torch.utils.data import Dataset, IterableDataset, Subset

from tests.loader.scenarios import Counting
from tests.loader.support import DataLoader as AnyLoader
from tests.loader.support import Samples
from tests.loader.telemetry.datasets import CLOCK

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture(autouse=True)
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes some sample or other slow: here they take as long as they say."""
    monkeypatch.setattr(fetching, "_clock", CLOCK)


def DataLoader(*arguments: Any, **more: Any) -> Any:
    """Its workers are forked, so that they have the clock."""
    return AnyLoader(*arguments, **more, multiprocessing_context="fork" if more.get("num_workers") else None)


times = st.integers(2_000, 1_000 * 10**9)
"""ns. Below 2 µs a whole number of µs says little."""


@given(st.lists(times, min_size=1, max_size=300), st.integers(1, 4))
def test_quantiles_are_right_to_within_six_per_cent(durations: list[int], workers: int) -> None:
    rows = [[0] * COST_BUCKETS for _ in range(workers)]
    slowest = SlowestSamples()
    for position, duration in enumerate(durations):
        count_costs(rows[position % workers], [duration])
        slowest.add(duration, str(position))
    found = sketch(rows, slowest)
    ranked = sorted(durations)
    assert found.count == len(durations)
    for share, told in ((0.5, found.p50_us), (0.95, found.p95_us), (0.99, found.p99_us)):
        place = next(n for n in range(1, len(ranked) + 1) if n >= share * len(ranked))
        true = ranked[place - 1] / 1000
        assert true * 0.94 - 1 <= told <= true * 1.06 + 1
    assert found.max_us == ranked[-1] // 1000
    assert durations[int(found.max_index)] == ranked[-1]


@given(st.lists(st.lists(times, min_size=1, max_size=5), min_size=1, max_size=20), st.integers(0, 7))
def test_batches_loaded_inline_are_counted_and_keep_their_names(batches: list[list[int]], record: int) -> None:
    costs = InlineCosts(record, 0)
    fetcher = MapFetcher(range(0), auto_collation=True)
    names: dict[str, int] = {}
    for number, durations in enumerate(batches):
        indices = [f"{number}/{place}" for place in range(len(durations))]
        names.update(zip(indices, durations, strict=True))
        fetcher.began = 1000 * number
        fetcher.stamps = list(accumulate(durations, initial=fetcher.began))[1:]
        costs.slowest.add_batch(number, -1, indices, count_batch(fetcher, costs.counts, record))
    found = costs.sample_cost()
    assert found.count == len(names)
    assert found.max_us == names[found.max_index] // 1000 == max(names.values()) // 1000
    ranked = costs.slowest.recorded()
    assert [each.us for each in ranked] == [each // 1000 for each in sorted(names.values(), reverse=True)[:record]]
    assert all(names[each.index] // 1000 == each.us for each in ranked)


@given(st.lists(st.integers(0, 1000), max_size=100), st.integers(1, 10))
def test_the_slowest_are_the_slowest(durations: list[int], most: int) -> None:
    slowest = SlowestSamples(most)
    for position, duration in enumerate(durations):
        slowest.add(duration * 1000, str(position))
    ranked = slowest.ranked()
    assert [each.us for each in ranked] == sorted(durations, reverse=True)[:most]
    assert all(durations[int(each.index)] == each.us for each in ranked)


class Waits(Dataset[Any]):
    """Every sample takes as long as the list says, ms."""

    def __init__(self, milliseconds: list[float]) -> None:
        self.milliseconds = milliseconds

    def __len__(self) -> int:
        return len(self.milliseconds)

    def __getitem__(self, index: int) -> int:
        CLOCK.pass_ms(self.milliseconds[index])
        return index


class WaitsTogether(Waits):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class WaitingStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        for number in range(12):
            CLOCK.pass_ms(120 if number == 7 else 2)
            yield number


SLOW = {5: 200, 17: 160, 30: 120}


def milliseconds(usual: float) -> list[float]:
    return [SLOW.get(index, usual) for index in range(40)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_slowest_samples_of_an_epoch_are_named(workers: int) -> None:
    made = DataLoader(Waits(milliseconds(2)), batch_size=4, shuffle=True, num_workers=workers, record_samples=3)
    list(made)
    stats = made.stats()
    found = {int(sample.index): sample.us for sample in stats.slowest}
    assert found.keys() == SLOW.keys()
    assert all(found[index] == SLOW[index] * 1000 for index in found)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert stats.cost.count == 40
    assert (stats.cost.max_index, stats.cost.max_us) == (stats.slowest[0].index, stats.slowest[0].us)
    assert stats.cost.p50_us == pytest.approx(2_000, rel=0.06)
    assert stats.cost.p99_us == pytest.approx(200_000, rel=0.06)
    made.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_without_being_asked_only_the_slowest_one_is_kept(workers: int) -> None:
    made = DataLoader(Waits(milliseconds(2)), batch_size=4, num_workers=workers)
    list(made)
    assert made.stats().slowest == []
    assert made.stats().cost.max_index == "5"
    made.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_they_are_those_of_one_epoch(persistent: bool) -> None:
    dataset = Waits(milliseconds(1))
    made = DataLoader(
        dataset, batch_size=4, sampler=range(32), num_workers=2, persistent_workers=persistent, record_samples=3,
        refresh="never", prefetch_epochs=False,
    )  # fmt: skip
    list(made)
    assert {sample.index for sample in made.stats().slowest} == {"5", "17", "30"}
    dataset.milliseconds[5], dataset.milliseconds[6] = 1.0, 100.0
    list(made)
    again = {sample.index for sample in made.stats().slowest}
    # A persistent worker has its copy of the dataset as it was.
    assert again == {"5" if persistent else "6", "17", "30"}
    assert made.stats().cost.count == 32, "not 64"
    made.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_one_among_cheap_ones_is_found(workers: int) -> None:
    """Cheap samples are not all timed; a surprise makes the fetcher look at every one again."""
    slow = {200: 100.0, 600: 200.0}
    made = DataLoader(Waits([slow.get(index, 0.0) for index in range(1600)]), batch_size=4, num_workers=workers)
    list(made)
    cost = made.stats().cost
    assert (cost.max_us, cost.max_index) == (200_000, "600")
    assert cost.p99_us <= 1
    made.close()


def untimed(dataset: Waits) -> MapFetcher:
    """A fetcher that has found the samples cheap."""
    fetcher = MapFetcher(dataset, auto_collation=True)
    for _ in range(3):
        fetcher.fetch(list(range(len(dataset))))
    assert not fetcher.stamps and not fetcher.surprise
    return fetcher


def test_of_a_surprise_the_mean_is_told_and_then_every_sample_s_time() -> None:
    dataset = Waits([0.0] * 64)
    fetcher = untimed(dataset)
    dataset.milliseconds[3] = 20.0
    fetcher.fetch(list(range(64)))
    assert fetcher.stamps == []
    assert fetcher.surprise == 20_000_000 // 64
    for _ in range(WARY):
        fetcher.fetch(list(range(64)))
        assert len(fetcher.stamps) == 64
        assert not fetcher.surprise


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_come_together_have_a_mean_and_no_culprit(workers: int) -> None:
    made = DataLoader(WaitsTogether([10.0] * 24), batch_size=8, num_workers=workers, record_samples=2)
    list(made)
    stats = made.stats()
    assert stats.cost.count == 24
    assert stats.cost.p50_us == pytest.approx(10_000, rel=0.06)
    assert stats.cost.max_index == ""
    assert stats.slowest == []
    made.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_a_stream_are_named_by_their_place_in_the_shard(workers: int) -> None:
    made = DataLoader(WaitingStream(), batch_size=4, num_workers=workers, record_samples=1)
    list(made)
    stats = made.stats()
    assert stats.cost.count == 12
    assert (stats.slowest[0].index, stats.slowest[0].us) == ("7 of shard 0", 120_000)
    made.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_without_batches_every_sample_counts(workers: int) -> None:
    made = DataLoader(Waits(milliseconds(1)), batch_size=None, num_workers=workers, record_samples=1)
    list(made)
    assert made.stats().cost.count == 40
    assert made.stats().slowest[0].index == "5"
    made.close()


class CountedWaits(Counting):
    """No sample is so cheap that it is not timed."""

    def __getitem__(self, index: int) -> Any:
        CLOCK.pass_ms(2)
        return super().__getitem__(index)


def test_a_worker_that_left_is_counted_once(tmp_path: Path) -> None:
    dataset = CountedWaits(tmp_path, 120)
    made = DataLoader(dataset, batch_size=2, num_workers=4, persistent_workers=True, prefetch_epochs=False)
    for epoch in range(3):
        before = len(dataset.fetched())
        for number, _ in enumerate(made):
            if epoch == 0 and number == 10:
                made.resize(1)
        # A batch that one worker had just taken up when it was given to another is made twice, and costs twice.
        assert 120 <= made.stats().cost.count <= len(dataset.fetched()) - before
    made.close()


def test_keys_that_are_strings_are_named_whole() -> None:
    made = DataLoader(Fruit(), batch_size=None, sampler=["apple", "banana"], num_workers=1, record_samples=1)
    list(made)
    assert made.stats().slowest[0].index == "banana"
    made.close()


class Fruit(Dataset[Any]):
    def __getitem__(self, key: str) -> str:
        CLOCK.pass_ms(50 if key == "banana" else 1)
        return key


def test_more_than_can_be_published_cannot_be_recorded() -> None:
    with pytest.raises(ValueError, match="record_samples must be at most 1000"):
        DataLoader(Samples(), record_samples=1001)


def test_loading_inline_they_are_there_during_the_epoch_and_of_that_epoch() -> None:
    made = DataLoader(Waits([1.0, 40.0, 1.0, 1.0]), record_samples=2)
    for epoch in range(2):
        iterator = iter(made)
        next(iterator)
        assert made.stats().cost.count == 1, epoch
        assert [sample.index for sample in made.stats().slowest] == ["0"]
        next(iterator)
        next(iterator)
        del iterator
        assert made.stats().cost.count == 3, "an epoch left early is one, too"
        assert made.stats().slowest[0].index == made.stats().cost.max_index == "1"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("times", [1, 2])
def test_samples_of_a_subset_are_told_apart(workers: int, times: int) -> None:
    """Torch's Subset has `__getitems__`, whatever it is a subset of."""
    dataset: Any = Waits([2.0] * 40 + [150.0] + [2.0] * 40)
    for _ in range(times):
        dataset = Subset(dataset, range(len(dataset)))
    made = DataLoader(Subset(dataset, range(17, 57)), batch_size=8, num_workers=workers, record_samples=1)
    assert [batch.tolist() for batch in made] == [list(range(first, first + 8)) for first in range(17, 57, 8)]
    stats = made.stats()
    assert (stats.slowest[0].index, stats.slowest[0].us) == ("23", 150_000)
    assert stats.cost.p50_us == pytest.approx(2_000, rel=0.06)
    made.close()


def test_a_subset_of_a_dataset_that_gives_batches_is_asked_for_batches() -> None:
    made = DataLoader(Subset(WaitsTogether([1.0] * 24), range(24)), batch_size=8)
    list(made)
    assert made.stats().cost.max_index == ""
    assert MapFetcher(Subset(WaitsTogether([0.0]), [0]), auto_collation=True).at_once


class Doubled(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return 2 * self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [3 * self.dataset[self.indices[index]] for index in indices]


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_subset_with_its_own_way_is_read_as_torch_reads_it(batch_size: int | None) -> None:
    dataset = Doubled(Waits([0.0] * 12), range(12))
    expected = [each.tolist() if batch_size else each for each in torch.utils.data.DataLoader(dataset, batch_size)]
    assert [each.tolist() if batch_size else each for each in DataLoader(dataset, batch_size)] == expected


def test_the_time_of_a_whole_batch_is_not_a_sample_s() -> None:
    costs = InlineCosts(0, 256)
    fetcher = MapFetcher(range(0), auto_collation=True)
    fetcher.surprise = Pace(False).surprise(256 * 30_000, 256)
    costs.slowest.add_batch(0, -1, range(256), count_batch(fetcher, costs.counts, 0))
    assert (costs.sample_cost().max_us, costs.sample_cost().max_index) == (30, "")
