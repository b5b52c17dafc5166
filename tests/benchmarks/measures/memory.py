"""The peak memory of training process, workers and shared memory together."""

from __future__ import annotations

from tests.benchmarks.case import Measures
from tests.benchmarks.competitors import COMPETITORS
from tests.benchmarks.competitors.plan import Plan
from tests.benchmarks.measures.throughput import counted
from tests.benchmarks.process_tree import PeakMemory
from tests.benchmarks.workloads import WORKLOADS


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int, keep: bool) -> Measures:
    """keep: as `list(loader)` does; else as a training loop does, one batch at a time."""
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * (batches // 2 if quick else batches))
    loader = COMPETITORS[variant].opener().open(Plan(dataset, spec.batch_size, workers))
    with PeakMemory() as peak:
        batches_seen = counted(loader, spec, dataset)
        if keep:
            kept = list(batches_seen)
            peak.sample()
            for number, batch in enumerate(kept):
                spec.check(batch, dataset, number * spec.batch_size)
        else:
            for batch in batches_seen:
                spec.leaf(batch).sum()
    return {"peak_mb": peak.bytes / 1e6}
