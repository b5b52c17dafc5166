"""Grain's dataset API with worker processes.

Grain stacks NumPy arrays and has its own shared memory for them, so tensors go in as arrays and come out as
tensors, neither with a copy. Batching comes before the work is split among the processes, so that batches are
the same and in the same order as everyone else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any

import torch
from torch import Tensor

from tests.benchmarks.competitors.plan import Plan
from tests.benchmarks.workloads import Samples

grain = import_module("grain")
multiprocessing = import_module("grain.multiprocessing")


class ArraySource:
    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return as_arrays(self.dataset[index])


def as_arrays(sample: Any) -> Any:
    if isinstance(sample, Tensor):
        return sample.numpy()
    if isinstance(sample, dict):
        return {key: value.numpy() for key, value in sample.items()}
    if isinstance(sample, tuple):
        return tuple(map(as_arrays, sample))
    return sample


def as_tensors(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: torch.from_numpy(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(as_tensors, batch))
    return torch.from_numpy(batch)


class Epochs:
    def __init__(self, plan: Plan) -> None:
        # One thread and two batches ahead in each worker, as torch has them: Grain's default of 500 batches
        # ahead would need 19 GB for `big`.
        reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        workers = multiprocessing.MultiprocessingOptions(num_workers=plan.workers, per_worker_buffer_size=2)
        source = grain.MapDataset.source(ArraySource(plan.dataset))
        self.batches = source.batch(plan.batch_size).to_iter_dataset(reading).mp_prefetch(workers)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.batches)
        try:
            yield from map(as_tensors, batches)
        finally:
            batches.close()


def open(plan: Plan) -> Iterable[Any]:
    return Epochs(plan)


def version() -> str:
    return installed_version("grain")
