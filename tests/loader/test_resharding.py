"""Iterable-style datasets that save their position: shards move between workers, order and content stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock import DataLoader
from penstock.pool.sharding import Shard, ShardedWindow
from penstock.pool.window import Limits
from penstock.protocol import Resize
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, get_worker_info

from tests.loader.pool.made import ended, made, opened
from tests.loader.scenarios import (
    InThread,
    Loaders,
    RewoundStream,
    SavedIteratorStream,
    SavedStream,
    await_workers,
    plain,
    split_evenly,
    worker_pids,
)
from tests.loader.support import Stream, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


DATASETS: dict[str, tuple[Callable[[], Any], Any]] = {
    "dataset": (lambda: SavedStream(60), None),
    "dataset that rewinds": (lambda: RewoundStream(60), None),
    "iterator": (lambda: SavedIteratorStream(60), None),
    "dataset in slots": (lambda: SavedStream(60, size=20_000), None),
    "split by worker_init_fn": (lambda: SavedIteratorStream(60, share=False), split_evenly),
}


def seeded(loaders: Loaders, kind: str, workers: int, **options: Any) -> DataLoader[Any]:
    make, init = DATASETS[kind]
    generator = torch.Generator().manual_seed(3)
    return loaders(make(), 2, num_workers=workers, worker_init_fn=init, generator=generator, **options)


@pytest.mark.parametrize("kind", DATASETS)
def test_resizes_in_both_directions_keep_order_and_content(loaders: Loaders, kind: str) -> None:
    expected = plain(seeded(loaders, kind, 3))
    for sizes in ({2: 1, 8: 2, 15: 4, 20: 3}, {0: 4, 6: 1, 7: 3, 22: 2}):
        loader = seeded(loaders, kind, 3, prefetch_factor=2)
        got = []
        for number, batch in enumerate(loader):
            got += plain([batch])
            if number in sizes:
                outcome = loader.resize(sizes[number])
                # Until its first batch an iterator has not shown that it can save its position.
                assert outcome.state == "applied"
                assert outcome.actual == sizes[number]
        assert got == expected


def test_the_stream_is_torchs(loaders: Loaders) -> None:
    torch_generator = torch.Generator().manual_seed(3)
    theirs = plain(TorchLoader(SavedStream(60), 2, num_workers=3, generator=torch_generator))
    loader = seeded(loaders, "dataset", 3)
    got = []
    for number, batch in enumerate(loader):
        got += plain([batch])
        if number % 4 == 1:
            loader.resize(1 + number % 5)
    assert got == theirs


def test_resizes_before_the_first_batch(loaders: Loaders) -> None:
    expected = plain(seeded(loaders, "dataset", 2))
    for workers in (1, 4):
        loader = seeded(loaders, "dataset", 2)
        iterator = iter(loader)
        assert loader.resize(workers).state == "applied"
        assert InThread(lambda iterator=iterator: plain(iterator)).result() == expected  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(2))
def test_many_resizes_without_a_breath(loaders: Loaders, seed: int) -> None:
    expected = plain(seeded(loaders, "dataset in slots", 2))
    choose = random.Random(seed)
    loader = seeded(loaders, "dataset in slots", 2)
    got = []
    for batch in loader:
        got += plain([batch])
        for _ in range(choose.randint(0, 3)):
            loader._penstock.request(Resize(choose.randint(1, 4)))
    assert got == expected


def test_an_idle_pool_moves_its_shards_too(loaders: Loaders) -> None:
    expected = plain(seeded(loaders, "dataset", 3))
    loader = seeded(loaders, "dataset", 3)
    iterator = iter(loader)
    got = plain([next(iterator)])
    loader.pause()
    assert loader.resize(1).state == "applied"
    assert len(await_workers(loader, 1)) == 1
    assert loader.resize(3).state == "applied"
    loader.resume()
    got += InThread(lambda: plain(iterator)).result()
    assert got == expected


class Told(SavedStream):
    """Tells which process read it and what that process was told."""

    def _samples(self, first: int, step: int) -> Iterator[Any]:
        import os

        for number, _ in super()._samples(first, step):
            info: Any = get_worker_info()
            yield number, torch.tensor([os.getpid(), info.id, info.num_workers, info.seed])


def test_datasets_are_told_their_shard_not_their_worker(loaders: Loaders) -> None:
    generator = torch.Generator().manual_seed(3)
    loader = loaders(Told(200), num_workers=2, generator=generator, prefetch_factor=1)
    shards: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set()}
    pids = set()
    for number, (value, (told,)) in enumerate(loader):
        pid, *info = told.tolist()
        shards[value.item() % 2].add(tuple(info))
        pids.add(pid)
        if number in (20, 60):
            assert loader.resize(1 if number == 20 else 3).state == "applied"
    assert [len(told) for told in shards.values()] == [1, 1]
    (first,), (second,) = shards.values()
    assert (first[:2], second[:2]) == ((0, 2), (1, 2))
    assert second[2] == first[2] + 1
    assert len(pids) >= 3


def test_the_next_epoch_has_as_many_shards_as_workers(loaders: Loaders) -> None:
    for persistent in (False, True):
        loader = seeded(loaders, "dataset", 2, persistent_workers=persistent)
        iterator = iter(loader)
        next(iterator)
        assert loader.resize(3).state == "applied"
        assert len(list(iterator)) == 29
        dealt = [[number, number + 3] for start in range(0, 60, 6) for number in range(start, start + 3)]
        assert InThread(lambda loader=loader: _numbers(loader)).result() == dealt  # type: ignore[misc]


def _numbers(batches: Any) -> list[list[int]]:
    return [batch[0].flatten().tolist() for batch in batches]


def test_an_abandoned_epoch_leaves_no_shard_behind(loaders: Loaders) -> None:
    """A persistent pool that was resized and left in mid-epoch begins the next one at the beginning."""
    expected = _numbers(seeded(loaders, "dataset that rewinds", 2))
    loader = seeded(loaders, "dataset that rewinds", 2, persistent_workers=True, prefetch_factor=1)
    for stop_at in (1, 4, 9):
        for number, _ in enumerate(loader):
            if number == stop_at:
                loader.resize(1)
                loader.resize(2)
                break
    assert InThread(lambda: _numbers(loader)).result() == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_datasets_without_a_position_wait_for_the_next_epoch(loaders: Loaders, persistent: bool) -> None:
    loader = loaders(Stream("int", 24), num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    await_workers(loader, 2)
    for workers in (4, 3):
        outcome = loader.resize(workers)
        assert (outcome.state, outcome.actual) == ("pending", 2)
        assert "position" in outcome.reason
    assert (loader.stats().pending, loader.stats().target) == (3, 2)
    assert len(list(iterator)) == 23
    assert InThread(lambda: [batch.item() for batch in loader]).result() == list(range(24))
    assert loader.stats().pending is None
    if persistent:
        assert len(worker_pids(loader)) == 3


class Unsplit(IterableDataset[Any]):
    """Every worker gives everything; ends at once for some."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        while self.position < self.lengths[info.id]:
            self.position += 1
            yield 100 * info.id + self.position
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def test_shards_of_unequal_length_move_and_end_in_their_turn(loaders: Loaders) -> None:
    lengths = [1, 9, 0, 4]
    theirs = [batch.item() for batch in TorchLoader(Unsplit(lengths), num_workers=4)]
    for sizes in ({0: 1}, {1: 2, 5: 4}, {3: 1, 9: 2}):
        loader = loaders(Unsplit(lengths), num_workers=4, prefetch_factor=1)
        got = []
        for number, batch in enumerate(loader):
            got.append(batch.item())
            if number in sizes:
                loader.resize(sizes[number])
        assert got == theirs


def test_a_resize_while_training_is_busy_moves_shards(loaders: Loaders) -> None:
    loader = seeded(loaders, "dataset", 2, prefetch_factor=1)
    expected = plain(seeded(loaders, "dataset", 2))
    iterator = iter(loader)
    got = plain([next(iterator)])
    assert loader.resize(4).state == "applied"  # from here on this thread does not iterate
    wait_until(lambda: len(worker_pids(loader)) == 4, "four workers")
    assert loader.resize(1).state == "applied"
    wait_until(lambda: len(worker_pids(loader)) == 1, "one worker")
    got += plain(iterator)
    assert got == expected


# -- the window by itself --------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    prefetch_factor=st.integers(1, 3),
    choose=st.randoms(use_true_random=False),
)
def test_no_schedule_of_moves_stops_the_window_or_changes_the_order(
    lengths: list[int], prefetch_factor: int, choose: random.Random
) -> None:
    """Workers, resizes, deaths and training take turns at random; no process is started."""
    plenty = 1 << 40
    limits = Limits(prefetch_factor * len(lengths), plenty, plenty, 2 * len(lengths))
    window = ShardedWindow(
        limits, shards=[Shard(n, n) for n in range(len(lengths))], per_shard=prefetch_factor, stateful=True
    )
    workers = list(range(len(lengths)))
    asked: list[tuple[int, int, int]] = []  # (worker, shard, batch), in the order in which each worker has them
    ready: list[Any] = []
    got: list[tuple[int, int]] = []

    def ask() -> None:
        for worker in workers:
            while (task := window.next_task(worker, len(got), len(got))) is not None:
                asked.append((worker, task.shard, task.batch))

    def work(place: int) -> None:
        worker, shard, batch = asked.pop(place)
        if batch >= lengths[shard]:
            ready.extend(window.end(worker, ended(batch, shard)))
        else:
            ready.extend(window.finish(worker, made(batch, (shard, batch), 1, shard=shard, state=b"")) or [])

    def resize() -> None:
        count = choose.randint(1, 4)
        workers[:] = choose.sample(range(8), count)
        window.limits.tasks = prefetch_factor * count
        window.rebalance(workers)

    while not window.is_over() or ready:
        ask()
        can = [place for place, (w, _, _) in enumerate(asked) if w not in {each[0] for each in asked[:place]}]
        action = choose.choice(["work"] * 4 + ["take"] * 2 + ["resize"])
        if action == "resize":
            resize()
        elif action == "take" and ready:
            got.append(opened(ready.pop(0)))
        elif can:
            work(choose.choice(can))
        elif ready:
            got.append(opened(ready.pop(0)))
        else:
            assert window.is_over(), "nobody has anything to do, and training waits"
    dealt = [(shard, turn) for turn in range(7) for shard, length in enumerate(lengths) if turn < length]
    assert got == dealt
