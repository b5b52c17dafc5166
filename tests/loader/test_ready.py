"""The seam for datasets that make whole batches: `ReadyBatch` and `batch_memory`."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from penstock import ReadyBatch, batch_memory, default_collate
from torch.utils import data
from torch.utils.data import Subset

from tests.loader.support import DataLoader, assert_same

Point = namedtuple("Point", "x y")


class Table(data.Dataset[Any]):
    """Rows of a tensor and their numbers; whole batches are made where they are wanted."""

    def __init__(self, ready: bool = True) -> None:
        self.values = torch.rand(200, 500)
        self.ready = ready

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return {"values": self.values[index], "index": index}

    def __getitems__(self, indices: list[int]) -> Any:
        if not self.ready:
            return [self[index] for index in indices]
        rows = torch.tensor(indices)
        out = batch_memory((len(indices), 500), torch.float32)
        return ReadyBatch({"values": torch.index_select(self.values, 0, rows, out=out), "index": rows})


def doubled(samples: list[Any]) -> Any:
    assert type(samples) is list
    return default_collate([{**sample, "index": 2 * sample["index"]} for sample in samples])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, doubled])
def test_ready_batches_are_what_their_samples_make(workers: int, collate_fn: Any) -> None:
    dataset = Subset(Table(ready=False), range(3, 200))
    theirs = list(data.DataLoader(dataset, 32, collate_fn=collate_fn))
    dataset.dataset.ready = True  # type: ignore[attr-defined]
    with DataLoader(
        dataset, 32, num_workers=workers, collate_fn=collate_fn, persistent_workers=workers > 0, prefetch_epochs=False
    ) as made:
        for _ in range(2):
            assert_same(list(made), theirs)
        assert (made.stats().samples, made.stats().cost.count) == (2 * 197, 197)


def test_torchs_own_loader_takes_the_samples_of_a_ready_batch() -> None:
    dataset = Table()
    ready = list(data.DataLoader(dataset, 32))
    dataset.ready = False
    assert_same(ready, list(data.DataLoader(dataset, 32)))


def test_the_samples_of_a_ready_batch() -> None:
    tensor, array = torch.arange(6).reshape(3, 2), np.arange(3)
    batch = ReadyBatch({"a": [tensor, array], "b": Point(tensor, ["x", "y", "z"])})
    assert len(batch) == len(list(batch)) == 3
    assert_same(batch[-1], {"a": (tensor[2], array[2]), "b": Point(tensor[2], "z")})
    with pytest.raises(IndexError, match="sample 3 of a batch of 3"):
        batch[3]
    assert len(ReadyBatch(["a", "b"], size=2)) == 2
    with pytest.raises(ValueError, match="give the size"):
        ReadyBatch({"a": torch.tensor(1)})


def test_memory_where_no_batch_is_made() -> None:
    memory = batch_memory([2, 3], torch.int16)
    assert (memory.shape, memory.dtype, memory.device.type) == ((2, 3), torch.int16, "cpu")
