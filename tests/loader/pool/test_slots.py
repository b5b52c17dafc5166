"""The life of slots: never two batches in one, never written while somebody looks, never lost."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock import DataLoader
from penstock.pool.crews import slots
from penstock.pool.crews.slots import SMALLEST, SlotStore, SlotTable, size_class
from torch.utils.data import Dataset

from tests.loader.support import open_descriptors
from tests.patience import PATIENCE


@given(st.integers(0, 1 << 40))
def test_size_classes_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size <= max(nbytes + max(nbytes // 8, 4096), SMALLEST)
    assert size_class(size) == size


class Keeper:
    """Holds a lease, as a payload does until training has the batch."""

    lease: Any = None


class Pair:
    """A worker's store and training's table, with messages in between that arrive when they like."""

    def __init__(self) -> None:
        self.store, self.table = SlotStore(), SlotTable()
        self.to_training: list[tuple[Any, Any, Any, int, int]] = []
        self.to_worker: list[tuple[list[int], list[int]]] = []
        self.filled: list[tuple[int, int]] = []
        self.views: list[tuple[torch.Tensor, int]] = []
        self.counter = 0

    def send(self, nbytes: int) -> None:
        """The worker writes a batch and announces it."""
        self.counter = (self.counter + 1) % 250
        slot = self.store.acquire(nbytes)
        assert slot.size >= nbytes
        memoryview(slot.buffer).cast("B")[:nbytes] = bytes([self.counter]) * nbytes
        sent = [os.dup(descriptor) for descriptor in self.store.descriptors]
        self.to_training.append((self.store.announcements, sent, self.store.dropped, slot.number, self.counter))
        self.store.announced()

    def receive(self) -> None:
        announced, descriptors, dropped, number, value = self.to_training.pop(0)
        for (new, size), descriptor in zip(announced, descriptors, strict=True):
            self.table.add(new, size, descriptor)
        for old in dropped:
            self.table.drop(old)
        self.table.fill()
        self.filled.append((number, value))

    def decode(self, nbytes: int) -> None:
        number, value = self.filled.pop(0)
        whole = torch.frombuffer(self.table.lease(number, Keeper()), dtype=torch.uint8)
        self.views.append((whole[: min(nbytes, 1000)], value))

    def check(self) -> None:
        for view, value in self.views:
            assert (view == value).all(), "written while somebody looked"
        numbers = [number for number, _ in self.filled]
        assert len(set(numbers)) == len(numbers), "two batches in one slot"

    def close(self) -> None:
        for _, descriptors, *_ in self.to_training:
            for descriptor in descriptors:
                os.close(descriptor)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["send", "send", "receive", "receive", "decode", "drop", "give back", "collect", "release", "trim"]
            ),
            st.integers(0, 5),
        ),
        max_size=80,
    )
)
def test_any_schedule(steps: list[tuple[str, int]]) -> None:
    before = open_descriptors()
    pair = Pair()
    for step, choice in steps:
        nbytes = (1, 1000, SMALLEST, SMALLEST + 1, 100_000, 200_000)[choice]
        if step == "send":
            pair.send(nbytes)
        elif step == "receive" and pair.to_training:
            pair.receive()
        elif step == "decode" and pair.filled:
            pair.decode(1)
        elif step == "drop" and pair.views:
            del pair.views[choice % len(pair.views)]
        elif step == "give back" and pair.filled:
            pair.table.give_back(pair.filled.pop(choice % len(pair.filled))[0])
        elif step == "collect":
            pair.to_worker.append(pair.table.collect())
        elif step == "release" and pair.to_worker:
            returned, spoiled = pair.to_worker.pop(0)
            assert not spoiled
            pair.store.release(returned)
        elif step == "trim":
            pair.store.trim()
        pair.check()
        assert pair.table.held() == len(pair.views)
    pair.close()
    assert open_descriptors() == before


def test_no_slot_is_lost() -> None:
    """What is decoded, dropped or given back can all be used again: a steady stream needs no new slots."""
    pair = Pair()
    for round_number in range(50):
        for _ in range(3):
            pair.send(100_000)
            pair.receive()
        pair.decode(1)
        pair.decode(1)
        pair.table.give_back(pair.filled.pop()[0])
        pair.views.clear()
        gc.collect() if round_number == 0 else None
        returned, _ = pair.table.collect()
        assert len(returned) == 3
        pair.store.release(returned)
    assert len(pair.table) == 3
    assert pair.table.used == 0
    assert pair.table.bytes == 3 * size_class(100_000)


def test_a_view_outlives_store_and_table() -> None:
    pair = Pair()
    pair.send(1000)
    pair.receive()
    pair.decode(1)
    ((view, value),) = pair.views
    del pair
    gc.collect()
    assert (view == value).all()


def test_a_slot_that_a_forked_copy_may_see_is_not_written_again() -> None:
    pair = Pair()
    pair.send(1000)
    pair.receive()
    pair.decode(1)
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    pair.views.clear()
    assert pair.table.collect() == ([], [0])
    assert len(pair.table) == 0


class Large(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 20,), index, dtype=torch.uint8)


def test_a_worker_waits_for_a_slot_rather_than_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training looks at one batch at a time: two slots are enough, however late they are given back.

    Of two workers, one may have to make a batch that was taken back from the other, while its slots hold later ones.
    """
    monkeypatch.setattr(slots, "MAKING", PATIENCE / (1 << 21))  # as if it took that long
    with DataLoader(Large(), 2, num_workers=1, prefetch_factor=2, multiprocessing_context="fork") as made:
        for number, batch in enumerate(made):
            assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]
            queues = made.stats().queues
            assert queues.slots_used + queues.slots_free <= 2


def test_how_long_a_slot_is_waited_for() -> None:
    store, large = SlotStore(), 32 << 20
    assert store.patience(large) == 0
    first = store.acquire(large)
    assert store.patience(large) == 0  # training is to have one of its own
    store.acquire(large)
    assert store.patience(large) == large * slots.MAKING
    assert store.patience(4096) == 0
    store.put_back(first)
    assert store.patience(large) == 0
    store.announced()
