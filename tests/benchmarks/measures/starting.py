"""How long a user waits for a pool to start: the first batch, and an epoch with new workers."""

from __future__ import annotations

import time

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
