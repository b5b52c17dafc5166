"""Memory and descriptors: constant, bounded, and never written to while somebody looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from tests.loader.support import (
    DataLoader,
    Full,
    Samples,
    Scripts,
    Stream,
    descendants,
    maps_shared_memory,
    open_descriptors,
    wait_until,
    workers_of,
)

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Twenty(Dataset[Any]):
    """Twenty tensors a sample."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {f"field {n}": torch.full((self.size,), index + n, dtype=torch.float32) for n in range(20)}


class Blobs(Dataset[bytes]):
    """Batches whose whole weight is in the pickle."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> bytes:
        return bytes(300_000)


def tree_descriptors() -> int:
    """Open descriptors of this process and all below it."""
    return open_descriptors() + sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in descendants(os.getpid()))


@pytest.mark.parametrize("size", [5, 3000], ids=["inline", "slots"])
def test_descriptors_do_not_grow_with_batches_tensors_or_epochs(size: int) -> None:
    made = DataLoader(Twenty(120, size), batch_size=2, num_workers=2, persistent_workers=True)
    list(made)
    workers_of(made._iterator)
    before = tree_descriptors()
    kept = [batch for _ in range(3) for batch in made]
    assert len(kept) == 180
    # A descriptor that is on its way between two processes is counted for an instant, and a worker that was late may
    # have had none of the first epoch's batches; but 3,600 tensors in 180 batches have come.
    wait_until(
        lambda: tree_descriptors() <= before + 20, f"as few descriptors as before: {tree_descriptors()} > {before}"
    )


def test_few_descriptors_are_enough(script: Scripts) -> None:
    body = """
import resource
from penstock import DataLoader
from tests.loader.test_memory import Twenty
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
kept = list(DataLoader(Twenty(300, 3000), batch_size=2, num_workers=2))
assert all(batch["field 7"][1, 0] == 2 * i + 8 for i, batch in enumerate(kept))
print(len(kept))
"""
    with script(body) as running:
        out, err = running.finish()
        assert out.split() == ["150"], err


def collate_with_torch(samples: list[Any]) -> Any:
    return {"batch": torch.utils.data.default_collate(samples)}


@pytest.mark.parametrize("collate", [None, collate_with_torch])
def test_nothing_is_in_dev_shm(collate: Any) -> None:
    before = maps_shared_memory(os.getpid())  # another test may have had a value of multiprocessing's
    iterator = iter(DataLoader(Full(40, 50_000), batch_size=4, num_workers=2, collate_fn=collate))
    next(iterator)
    for pid in (os.getpid(), *descendants(os.getpid())):
        assert [each for each in maps_shared_memory(pid) if each not in before] == []
    assert len(list(iterator)) == 9


# -- the budget ---------------------------------------------------------------------------------------------


def finished_bytes(iterator: Any) -> int:
    epoch = iterator.pool.conductor.epoch
    window = epoch.window
    return int(window.held_bytes + window.delivered_bytes - epoch.taken_bytes)


@pytest.mark.parametrize(
    "dataset", [Full(100, 100_000), Stream("big", 3000), Blobs()], ids=["map", "iterable", "bytes"]
)
@pytest.mark.parametrize("workers", [1, 3])
def test_finished_batches_stay_within_the_budget(dataset: Any, workers: int) -> None:
    budget = 1_300_000
    options: Any = {"num_workers": workers, "memory_budget": budget, "prefetch_factor": 100}
    iterator = iter(DataLoader(dataset, batch_size=None, **options))
    for step, _ in zip(range(30), iterator, strict=False):
        if step % 5 == 0:
            wait_until(lambda: finished_bytes(iterator) > budget / 4, "a pool that runs ahead")
        assert finished_bytes(iterator) <= budget


def test_a_batch_larger_than_the_budget_still_comes() -> None:
    made = DataLoader(Full(6, 100_000), batch_size=2, num_workers=2, memory_budget=1000)
    assert [batch[0, 0].item() for batch in made] == [0, 2, 4]


def test_a_slow_reader_bounds_an_endless_stream() -> None:
    iterator = iter(DataLoader(Stream("big", 10**9), batch_size=2, num_workers=2, prefetch_factor=3))
    next(iterator)
    epoch: Any = iterator.pool.conductor.epoch
    wait_until(lambda: epoch.window.unfinished == 0, "idle workers")
    assert epoch.window.held + epoch.window.delivered - epoch.taken <= 6


# -- slots are used again, but never while a view lives ---------------------------------------------------------


def test_an_epoch_kept_whole_is_intact() -> None:
    kept = list(DataLoader(Full(400), batch_size=2, num_workers=2, memory_budget=2_000_000))
    for number, batch in enumerate(kept):
        assert (batch == torch.tensor([[2 * number], [2 * number + 1]])).all(), number


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(holds=st.lists(st.integers(0, 12), min_size=120, max_size=120), budget=st.sampled_from([400_000, 8_000_000]))
def test_batches_held_for_any_time_are_intact(holds: list[int], budget: int) -> None:
    """Batch i is held, sometimes by a mere slice, until `holds[i]` further batches have come."""
    held: dict[int, list[tuple[int, torch.Tensor]]] = {}
    made = DataLoader(Full(120), batch_size=None, num_workers=2, memory_budget=budget)
    for number, batch in enumerate(made):
        held.setdefault(number + holds[number], []).append((number, batch[100:200] if number % 2 else batch))
        del batch
        for origin, view in held.pop(number, []):
            assert (view == origin).all()
    for due in held.values():
        for origin, view in due:
            assert (view == origin).all()


def test_what_training_writes_into_a_batch_stays_there() -> None:
    kept = []
    for number, batch in enumerate(DataLoader(Full(120), num_workers=2, memory_budget=500_000)):
        assert (batch == number).all(), "somebody else's writing"
        batch.mul_(0).sub_(7)
        if number % 10 == 0:
            kept.append(batch)
    assert all((batch == -7).all() for batch in kept)


def test_arrays_and_views_keep_their_slot() -> None:
    """NumPy arrays, slices and reshaped views made by training hold the memory as well as the batch itself does."""
    kept: list[tuple[int, Any]] = []
    for number, batch in enumerate(DataLoader(Full(120), num_workers=2, memory_budget=500_000)):
        view: Any = [batch.numpy(), batch[0, 50:60], batch.view(-1, 10).t(), memoryview(batch.numpy())][number % 4]
        kept.append((number, view))
        del batch, view
        while len(kept) > 8:
            origin, view = kept.pop(0)
            assert (np.asarray(view) == origin).all()


def test_breaking_off_epochs_does_not_use_up_slots() -> None:
    arguments: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "memory_budget": 1_000_000}
    # The budget has room for 12 finished batches and two workers are at one each; a slot that has just come back may
    # not be known to its worker, which then makes another. If every epoch lost its own, there were hundreds.
    most = 100
    with pytest.warns(match="no accelerator is found"):
        made = DataLoader(Full(200), pin_memory=True, **arguments)
        for _ in range(25):
            next(iter(made))
            assert sum(len(worker.slots) for worker in workers_of(made._iterator)) <= most


def test_dropped_slots_are_unmapped(script: Scripts) -> None:
    """Batches that grow in size make larger slots; the smaller ones go.

    With one task at a time, a slot is at the worker, on its way, training's, or on its way back, whatever the machine
    does; sixty sizes come by.
    """
    body = """
from penstock import DataLoader
from tests.loader.test_memory import Growing
def mapped():
    return sum("memfd:penstock" in line for line in open("/proc/self/maps"))
before = mapped()
sizes, most = set(), 0
for batch in DataLoader(Growing(), batch_size=None, num_workers=1, prefetch_factor=1):
    sizes.add(batch.shape)
    most = max(most, mapped() - before)
print(len(sizes), most)
"""
    with script(body) as running:
        out, err = running.finish()
        sizes, most = map(int, out.split())
        assert sizes == 60, err
        assert 1 <= most <= 8, err


class Growing(Dataset[Any]):
    """Every batch needs a slot of another size than the one before."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(int(70_000 * 1.1**index), dtype=torch.uint8)


def test_samples_are_the_datasets_own() -> None:
    """Inline loading hands out what the dataset made, not a copy that could be shared with another batch."""
    first, second = DataLoader(Samples("tensor", 2))
    first.zero_()
    assert second.sum() > 0
