"""How long a user waits for a pool to start: the first batches, and an epoch with new workers or the old ones."""

from __future__ import annotations

import gc
import time
from statistics import median
from typing import Any

from penstock import DataLoader
from torch.utils import data

from tests.benchmarks.case import Measures
from tests.benchmarks.competitors import COMPETITORS
from tests.benchmarks.competitors.plan import Plan
from tests.benchmarks.measures.throughput import counted
from tests.benchmarks.workloads import WORKLOADS


def measure_spawn(variant: str, quick: bool, *, workers: int) -> Measures:
    """From iter() to the first batch under spawn."""
    spec = WORKLOADS["spawn_first"]
    dataset = spec.dataset(spec.batch_size * workers * (2 if quick else 4))
    plan = Plan(dataset, spec.batch_size, workers, start_method="spawn", persistent=False)
    loader = COMPETITORS[variant].opener().open(plan)
    first = 0.0
    start = time.perf_counter()
    for batch in counted(loader, spec, dataset):
        if not first:
            first = time.perf_counter() - start
            spec.check(batch, dataset, 0)
    return {"first_batch_s": first, "epoch_s": time.perf_counter() - start}


def measure_first(variant: str, quick: bool, *, workload: str, workers: int, batches: int) -> Measures:
    """From iter() of a fresh loader, whose workers are still to be started, to the last of so many batches."""
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * batches)
    seconds = []
    for _ in range(1 if quick else 3):
        loader = COMPETITORS[variant].opener().open(Plan(dataset, spec.batch_size, workers))
        gc.collect()
        start = end = time.perf_counter()
        for number, batch in enumerate(counted(loader, spec, dataset)):
            end = time.perf_counter()
            if number % 12 == 0:
                spec.check(batch, dataset, number * spec.batch_size)
        seconds.append(end - start)
        del loader, batch
    return {"seconds": min(seconds)}


def measure_restart(variant: str, quick: bool, *, workers: int, batches: int) -> Measures:
    """From iter() to the first batch and to the end of a short epoch, once an earlier epoch is over."""
    spec = WORKLOADS["restart"]
    dataset = spec.dataset(spec.batch_size * batches)
    plan = Plan(dataset, spec.batch_size, workers, start_method="fork", persistent=False)
    loader = COMPETITORS[variant].opener().open(plan)
    firsts, epochs = [], []
    for _ in range(3 if quick else 6):
        first = 0.0
        start = time.perf_counter()
        for batch in counted(loader, spec, dataset):
            if not first:
                first = time.perf_counter() - start
                spec.check(batch, dataset, 0)
        epochs.append(time.perf_counter() - start)
        firsts.append(first)
    return {"first_batch_s": min(firsts[1:]), "epoch_s": min(epochs[1:])}


class Asleep(data.Dataset[int]):
    """A batch of four takes 80 ms."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


def measure_gap(variant: str, quick: bool, *, workers: int, step: float) -> Measures:
    """The wait for the first batch of an epoch on the workers of the last one, and for any other batch."""
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers, "persistent_workers": True}
    dataset = Asleep(4 * 24)
    loader: Any = data.DataLoader(dataset, **arguments)
    if variant != "torch":
        loader = DataLoader(dataset, **arguments, monitor=False, prefetch_epochs=variant == "penstock")
    firsts: list[float] = []
    others: list[float] = []
    for _ in range(4 if quick else 8):
        start = time.perf_counter()
        iterator = iter(loader)
        begun = time.perf_counter()
        for number in range(len(loader)):
            asked = time.perf_counter()
            next(iterator)
            (others if number else firsts).append(time.perf_counter() - asked)
            time.sleep(step)
        starts = begun - start
        if next(iterator, None) is not None:
            raise RuntimeError("there are more batches than there should be")
    first, other = median(firsts[1:]), median(others)
    return {"first_ms": 1000 * first, "step_ms": 1000 * other, "iter_ms": 1000 * starts, "of_step": first / other}
