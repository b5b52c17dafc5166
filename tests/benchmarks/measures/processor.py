"""The processor time of training process and workers together, from iter() to the end of the last worker."""

from __future__ import annotations

import gc
import resource

from tests.benchmarks.case import Measures
from tests.benchmarks.competitors import COMPETITORS
from tests.benchmarks.competitors.plan import Plan
from tests.benchmarks.measures.throughput import counted
from tests.benchmarks.workloads import WORKLOADS


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int) -> Measures:
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * (batches // 4 if quick else batches))
    dataset[0]  # what a sample imports is not what is measured
    loader = COMPETITORS[variant].opener().open(Plan(dataset, spec.batch_size, workers, persistent=False))
    gc.collect()
    before = processor_seconds()
    for _ in counted(loader, spec, dataset):
        pass
    if hasattr(loader, "close"):
        loader.close()
    return {"processor_s": processor_seconds() - before}


def processor_seconds() -> float:
    """Of this process and of all that have ended below it."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
