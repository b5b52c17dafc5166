"""Shapes of datasets, samplers and arrays that torch accepts, beside torch: the same batches, asked for alike."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from penstock import DataLoader
from torch.utils import data
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.loader.scenarios import plain
from tests.loader.support import Samples
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

LOADERS: list[Any] = [data.DataLoader, DataLoader]


class StartsOver:
    """An iterator that is its own iterable and begins again with every `iter()`."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.position = len(items)
        self.iters = 0

    def __iter__(self) -> StartsOver:
        self.iters += 1
        self.position = 0
        return self

    def __next__(self) -> Any:
        if self.position >= len(self.items):
            raise StopIteration
        self.position += 1
        return self.items[self.position - 1]

    def __len__(self) -> int:
        return len(self.items)


class StreamThatStartsOver(StartsOver, data.IterableDataset[int]):
    pass


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_starts_over_with_iter_is_read_once(workers: int) -> None:
    ours, theirs = (
        plain(kind(StreamThatStartsOver(list(range(200))), 8, num_workers=workers))
        for kind in (DataLoader, data.DataLoader)
    )
    assert ours == theirs
    assert len(ours) == 25 * max(workers, 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["sampler", "batch_sampler"])
def test_a_sampler_that_starts_over_with_iter_is_asked_as_often_as_torch_asks(workers: int, how: str) -> None:
    seen = []
    for kind in LOADERS:
        sampler = StartsOver(list(range(30)) if how == "sampler" else [[at, at + 1] for at in range(30)])
        arguments = {how: sampler, **({"batch_size": None} if how == "sampler" else {})}
        made = kind(Samples("int", 40), num_workers=workers, **arguments)
        seen.append((plain(made), plain(made), sampler.iters))
    assert seen[0] == seen[1]


def test_a_sampler_that_starts_over_gives_batches() -> None:
    sampler = StartsOver(list(range(30)))
    assert plain(DataLoader(Samples("int", 40), 4, sampler=sampler)) == plain(DataLoader(Samples("int", 30), 4))


class Endless:
    """A batch sampler that begins its sampler anew for ever, as InfiniteDataLoader and timm's MultiEpochsDataLoader."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = data.BatchSampler(sampler, 4, True)
        self.drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            for batch in self.sampler:
                self.drawn += 1
                yield batch


@pytest.mark.parametrize("workers", [1, 2])
def test_an_endless_sampler_follows_set_epoch(workers: int) -> None:
    orders: list[list[Any]] = []
    for kind in LOADERS:
        sampler: Any = data.DistributedSampler(range(64), 1, 0)  # type: ignore[arg-type]
        made = kind(Samples("int", 64), batch_sampler=Endless(sampler), num_workers=workers, persistent_workers=True)
        iterator = iter(made)
        epochs = []
        for epoch in range(6):
            sampler.set_epoch(epoch)
            epochs.append(plain(islice(iterator, 16)))
        orders.append(epochs)
        del iterator
        made._iterator = None
    assert orders[0] == orders[1]
    assert len({json.dumps(epoch) for epoch in orders[1]}) == 5


@pytest.mark.parametrize("prefetch", [None, 3])
def test_a_sampler_of_the_users_own_is_drawn_as_deep_as_torch_draws_it(prefetch: int | None) -> None:
    depths = []
    for kind in LOADERS:
        sampler = Endless(data.SequentialSampler(range(64)))
        iterator = iter(kind(Samples("int", 64), batch_sampler=sampler, num_workers=2, prefetch_factor=prefetch))
        depth = [sampler.drawn]
        for _ in range(5):
            next(iterator)
            depth.append(sampler.drawn)
        depths.append(depth)
        del iterator
    assert depths[0] == depths[1]


def test_torchs_own_samplers_are_drawn_further_ahead() -> None:
    made = DataLoader(Samples("int", 4000), num_workers=2)
    iterator: Any = iter(made)
    assert iterator._drawn == 512
    shared = torch.Generator()
    for sampler in (
        data.RandomSampler(range(4000), replacement=True, generator=shared),
        data.RandomSampler(range(40), num_samples=4000, generator=shared),
    ):
        lazy: Any = iter(DataLoader(Samples("int", 4000), sampler=sampler, num_workers=2))
        assert lazy._drawn == 4, "it draws in mid-pass from a generator that others may use"
        del lazy
    del iterator


class Seeds(data.Dataset[Any]):
    """What the three generators give, and the seed of torch's."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, torch.initial_seed(), torch.rand(()).item(), random.random(), np.random.rand()


def constant(worker: int) -> None:  # noqa: ARG001
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def only_numpy(worker: int) -> None:  # noqa: ARG001
    np.random.seed(3)


def by_worker(worker: int) -> None:
    np.random.seed(100 + worker)


def draws(init: Any, workers: int, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [
        [part.tolist() for part in batch] for batch in DataLoader(Seeds(), 3, num_workers=workers, worker_init_fn=init)
    ]


def test_what_worker_init_fn_seeds_is_the_base_of_the_batches_seeds() -> None:
    first = draws(constant, 1, 5)
    assert draws(constant, 3, 6) == first, "constants give the same numbers in every run, with any number of workers"
    for before, after in zip(draws(only_numpy, 1, 5), draws(only_numpy, 2, 6), strict=True):
        assert before[4] == after[4] and before[2] != after[2] and before[3] != after[3], "only what it seeded"
    for before, after in zip(draws(by_worker, 1, 5), draws(by_worker, 3, 6), strict=True):
        assert before[4] == after[4], "the first worker's is taken for all"
    assert draws(None, 1, 5) == draws(None, 3, 5) != draws(None, 1, 6)
    numbers = [number for batch in first for part in batch for number in part]
    assert len(set(numbers)) >= 4 + 3 * 12, "every batch has other numbers"


class DiesOnce:
    """The first worker dies in its `worker_init_fn`, the first time."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, worker: int) -> None:
        if worker == 0 and not self.mark.exists():
            self.mark.touch()
            time.sleep(0.5)  # so that the others have all tasks
            os._exit(1)


@pytest.mark.filterwarnings("ignore:.*exited unexpectedly")
def test_a_first_worker_that_dies_before_it_told_the_bases_is_replaced(tmp_path: Path) -> None:
    made = DataLoader(Samples("int", 2), num_workers=16, worker_init_fn=DiesOnce(tmp_path / "died"), timeout=PATIENCE)
    assert plain(made) == [[0], [1]]


class FailsLate(data.Sampler[int]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise OSError("the list is torn")


def test_after_a_sampler_s_error_there_is_no_more() -> None:
    seen = []
    for kind in LOADERS:
        iterator = iter(kind(Samples("int", 8), 2, sampler=FailsLate()))
        got: list[Any] = [next(iterator).tolist()]
        with pytest.raises(OSError, match="torn"):
            next(iterator)
        seen.append([*got, *plain(iterator)])
    assert seen[0] == seen[1] == [[0, 1]]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_datapipes_shuffle_as_torch_does_in_every_epoch(workers: int, persistent: bool) -> None:
    seen = []
    for kind in LOADERS:
        torch.manual_seed(7)
        pipe = IterableWrapper(range(40)).shuffle().sharding_filter()
        made = kind(pipe, shuffle=True, num_workers=workers, persistent_workers=persistent)
        seen.append([plain(made), plain(made), plain(made), torch.rand(2).tolist()])
        made._iterator = None
    assert seen[0] == seen[1]
    assert seen[1][0] != seen[1][1] != seen[1][2]


class Arrays(data.Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return [
            np.frombuffer(bytes(range(16)), dtype=np.uint8),
            np.frombuffer(bytes(range(16)) * 20_000, dtype=">i4"),
            np.arange(4, dtype=">f4") + index,
            np.array([(1, 2.5)], dtype=[("a", ">i2"), ("b", "<f8")]),
            np.asfortranarray(np.ones((3, 4), dtype=">i8")),
            np.broadcast_to(np.arange(3), (2, 3)),
            np.array(["x", None], dtype=object),
        ]


def first_of(batch: list[Any]) -> Any:
    return batch[0]


def test_arrays_arrive_as_through_torchs_queue() -> None:
    ours, theirs = (
        next(iter(kind(Arrays(), 1, num_workers=1, collate_fn=first_of))) for kind in (DataLoader, data.DataLoader)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert (mine.flags.f_contiguous, mine.strides) == (other.flags.f_contiguous, other.strides)
        assert mine.flags.writeable, "as torch's are, but for Python 3.14 and read-only ones"
        assert mine.tolist() == other.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_threads_share_ends_for_all_of_them(workers: int) -> None:
    made = DataLoader(Samples("int", 200), num_workers=workers)
    iterator = iter(made)
    seen: list[int] = []
    ends: list[str] = []

    def read() -> None:
        try:
            while True:
                seen.append(next(iterator).item())
        except BaseException as error:
            ends.append(type(error).__name__)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE)
    assert ends == ["StopIteration"] * 4
    assert sorted(seen) == list(range(200))
    assert made.stats().batches == 200
