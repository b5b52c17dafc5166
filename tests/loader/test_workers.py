"""Workers as a dataset and a training loop see them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset

import loader
from tests.loader.support import (
    DataLoader,
    Draws,
    Samples,
    Stream,
    WholeBatches,
    assert_same,
    values,
)

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Informer(Dataset[Any]):
    """Samples say what their worker knows of itself."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        ours, theirs = loader.get_worker_info(), torch.utils.data.get_worker_info()
        assert ours is theirs
        if ours is None:
            return None
        return (
            ours.id, ours.num_workers, ours.seed, ours.dataset is self,
            torch.get_num_threads(), self.__dict__.get("mark"),
        )  # fmt: skip


def as_is(samples: Any) -> Any:
    return samples


def mark_dataset(worker: int) -> None:
    info = loader.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.mark = f"initialised by {worker}"


def test_there_is_no_worker_info_in_the_main_process() -> None:
    assert loader.get_worker_info() is None
    assert list(DataLoader(Informer(), collate_fn=as_is)) == [[None]] * 8
    assert loader.get_worker_info() is None


def test_worker_info_is_torchs() -> None:
    def seen(kind: Any) -> set[Any]:
        generator = torch.Generator().manual_seed(11)
        arguments = {"num_workers": 2, "collate_fn": as_is, "generator": generator, "worker_init_fn": mark_dataset}
        return {sample for batch in kind(Informer(), **arguments) for sample in batch}

    theirs = seen(torch.utils.data.DataLoader)
    assert len(theirs) == 2
    # Tasks go to whichever worker is free, so one of ours may have had none.
    assert seen(DataLoader) <= theirs


class Told(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = loader.get_worker_info()
        assert info is not None
        yield info.id, info.num_workers, info.seed


def test_every_iterable_worker_has_torchs_info() -> None:
    def seen(kind: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(11)
        return list(kind(Told(), num_workers=3, collate_fn=as_is, generator=generator))

    assert seen(DataLoader) == seen(torch.utils.data.DataLoader)


class Range(IterableDataset[int]):
    """The sharding example of torch's documentation."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        info = loader.get_worker_info()
        first, last = self.start, self.end
        if info is not None:
            share = math.ceil((self.end - self.start) / info.num_workers)
            first = self.start + info.id * share
            last = min(first + share, self.end)
        return iter(range(first, last))


class Plain(IterableDataset[int]):
    """The other one: worker_init_fn does the sharding."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def share_out(_: int) -> None:
    info = loader.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    share = math.ceil((dataset.end - dataset.start) / info.num_workers)
    dataset.start += info.id * share
    dataset.end = min(dataset.start + share, dataset.end)


@pytest.mark.parametrize(("workers", "expected"), [(2, [3, 5, 4, 6]), (20, [3, 4, 5, 6])])
def test_the_classic_sharding_examples(workers: int, expected: list[int]) -> None:
    one = DataLoader(Range(3, 7), num_workers=workers)
    other = DataLoader(Plain(3, 7), num_workers=workers, worker_init_fn=share_out)
    assert [batch.item() for batch in one] == expected
    assert [batch.item() for batch in other] == expected


def test_unsharded_streams_are_read_once_by_each_worker() -> None:
    assert values(DataLoader(Plain(3, 5), num_workers=2)) == [[3], [3], [4], [4]]


def test_drop_last_holds_for_every_worker() -> None:
    made = DataLoader(Plain(0, 5), num_workers=2, batch_size=2, drop_last=True)
    assert values(made) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_getitems_gets_whole_batches() -> None:
    made = DataLoader(WholeBatches(length=5), batch_size=2, num_workers=1, collate_fn=as_is)
    assert list(made) == [[(2, 0), (2, 1)], [(2, 2), (2, 3)], [(1, 4)]]


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_does_not_depend_on_the_number_of_workers(workers: int) -> None:
    def epochs(count: int) -> list[Any]:
        generator = torch.Generator().manual_seed(7)
        made = DataLoader(Draws(), batch_size=4, num_workers=count, generator=generator)
        return [list(made), list(made)]

    if workers:
        assert_same(epochs(1), epochs(workers))
        assert_same(epochs(1), epochs(4))
    first, second = epochs(max(workers, 1))
    assert not any(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True)), "epochs draw alike"
    assert len({tuple(row) for batch in first for row in batch[1].tolist()}) == 24, "samples draw alike"


def test_persistent_workers_draw_anew_in_every_epoch() -> None:
    made = DataLoader(Draws(8), num_workers=2, persistent_workers=True)
    first, second = list(made), list(made)
    assert not any(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))


def test_persistent_workers_are_the_same_processes() -> None:
    made = DataLoader(Pids(), num_workers=2, persistent_workers=True)
    pids = {value for epoch in range(4) for batch in made for value in batch.tolist()}
    assert len(pids) <= 2


class Pids(Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        import os

        return os.getpid()


# -- loops -------------------------------------------------------------------------------------------------


def test_nested_loops_over_one_loader() -> None:
    made = DataLoader(range(3), num_workers=1)
    assert [(a.item(), b.item()) for a in made for b in made] == [(a, b) for a in range(3) for b in range(3)]


def test_two_live_iterators_do_not_meddle() -> None:
    made = DataLoader(range(6), num_workers=2)
    pairs = [(a.item(), b.item()) for a, b in zip(made, made, strict=True)]
    assert pairs == [(i, i) for i in range(6)]


def test_nested_loaders() -> None:
    outer = DataLoader(range(3), num_workers=1)
    inner = DataLoader(Stream(length=4), num_workers=2)
    assert [(a.item(), b.item()) for a in outer for b in inner] == [(a, b) for a in range(3) for b in range(4)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Samples("big", 60), Stream("big", 60)], ids=["map", "iterable"])
def test_break_and_start_again(persistent: bool, dataset: Any) -> None:
    made = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=persistent)
    whole = list(torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2))
    for stop in [1, 3, 2, 5, 1, 1, 4, 2]:
        part = [batch for batch, _ in zip(made, range(stop), strict=False)]
        assert_same(part, whole[:stop])
    assert_same(list(made), whole)


def test_a_finished_iterator_stays_finished() -> None:
    iterator = iter(DataLoader(range(2), num_workers=1))
    assert len(list(iterator)) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_iterator_outlives_its_loader() -> None:
    iterator = iter(DataLoader(range(5), num_workers=1))
    assert values(iterator) == [[0], [1], [2], [3], [4]]


def test_a_dataset_may_use_a_loader_without_workers() -> None:
    made = DataLoader(Nesting(0), num_workers=1)
    assert values(made) == [[3], [3]]


def test_a_worker_with_workers_is_refused_as_by_torch() -> None:
    with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
        list(DataLoader(Nesting(1), num_workers=1))


class Nesting(Dataset[int]):
    """Loads with a loader of its own."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        made = DataLoader(range(4), num_workers=self.workers)
        return max(int(batch) for batch in made)


class Caching:
    """A collate_fn that keeps some of its batches, as MixUp does, and counts those that have changed since."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.calls = 0

    def __call__(self, samples: list[Any]) -> Any:
        batch = torch.utils.data.default_collate(samples)
        changed = sum(not torch.equal(kept, copy) for kept, copy in self.kept)
        if self.calls % 10 == 0:
            self.kept.append((batch, batch.clone()))
        self.calls += 1
        return batch, changed


def test_a_collate_fn_may_keep_its_batches() -> None:
    """All batches have one size and the budget is small, so that every slot is used many times."""
    made = DataLoader(Samples("big", 600), batch_size=4, num_workers=1, memory_budget=600_000, collate_fn=Caching())
    assert [changed for _, changed in made] == [0] * 150


def test_torch_leaves_kept_batches_alone() -> None:
    """The promise that the test above measures is torch's own."""
    made = torch.utils.data.DataLoader(Samples("big", 600), batch_size=4, num_workers=1, collate_fn=Caching())
    assert [changed for _, changed in made] == [0] * 150
