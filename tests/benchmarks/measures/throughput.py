"""Batches a second of whole epochs, with a pool that is already up."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tests import accelerator
from tests.benchmarks.case import Measures
from tests.benchmarks.competitors import COMPETITORS
from tests.benchmarks.competitors.plan import Plan
from tests.benchmarks.workloads import WORKLOADS, Samples, Skewed, Workload

LEAST_SECONDS = 1.0
"""Epochs are repeated until they took so long together: one epoch of a fast loader is too short to time."""


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int, pinned: bool = False) -> Measures:
    """`pinned`: to pinned memory of the test accelerator, so that it can be measured without a GPU."""
    if pinned:
        accelerator.install()
    spec, competitor = WORKLOADS[workload], COMPETITORS[variant]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    loader = competitor.opener().open(Plan(dataset, spec.batch_size, workers, pin_memory=pinned))
    first_batch = warm_up(loader, spec, dataset)

    dataset.length = spec.batch_size * (max(batches // 4, 2 * workers) if quick else batches)
    untimed = 0
    if not competitor.keeps_workers:
        untimed = 2 * workers
        dataset.length += spec.batch_size * untimed
        loader = competitor.opener().open(Plan(dataset, spec.batch_size, workers))
    # What the imports left would be collected in whichever epoch comes next: 0.1 s in which the process does nothing.
    gc.collect()
    timed, seconds, epochs = 0, 0.0, 0
    while seconds < (LEAST_SECONDS / 4 if quick else LEAST_SECONDS):
        counted, elapsed = time_epoch(loader, spec, dataset, untimed)
        timed, seconds, epochs = timed + counted, seconds + elapsed, epochs + 1
    found = {
        "batches_per_s": timed / seconds,
        "samples_per_s": timed * spec.batch_size / seconds,
        "first_batch_s": first_batch,
        "epochs": float(epochs),
        "seconds": seconds,
    }
    if isinstance(dataset, Skewed):
        ideal = len(dataset) / spec.batch_size * workers / dataset.work()
        found["share_of_ideal"] = found["batches_per_s"] / ideal
    return found


def warm_up(loader: Iterable[Any], spec: Workload, dataset: Samples) -> float:
    """Start the pool with an epoch, check its batches, and say after how long the first one came."""
    start = time.perf_counter()
    first = 0.0
    for number, batch in enumerate(counted(loader, spec, dataset)):
        first = first or time.perf_counter() - start
        spec.check(batch, dataset, number * spec.batch_size)
    return first


def time_epoch(loader: Iterable[Any], spec: Workload, dataset: Samples, untimed: int = 0) -> tuple[int, float]:
    """(batches that came while the clock ran, seconds until the last one); some may be left untimed."""
    size = spec.size
    clock = time.perf_counter
    start = clock()
    batches = iter(loader)
    samples = came = 0
    for batch in islice(batches, untimed):
        samples += size(batch)
        came += 1
        start = clock()
    end = start
    for batch in batches:
        samples += size(batch)
        came += 1
        end = clock()
    verify(came, samples, spec, dataset)
    return came - untimed, end - start


def verify(came: int, samples: int, spec: Workload, dataset: Samples) -> None:
    if (came, samples) != (-(-len(dataset) // spec.batch_size), len(dataset)):
        raise RuntimeError(f"{came} batches with {samples} samples came from a dataset of {len(dataset)}")


def counted(loader: Iterable[Any], spec: Workload, dataset: Samples) -> Iterator[Any]:
    """The loader's batches; raises at the end unless all of them came."""
    came = samples = 0
    for batch in loader:
        came += 1
        samples += spec.size(batch)
        yield batch
    verify(came, samples, spec, dataset)
