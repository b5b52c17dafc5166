"""What being profiled costs.

On a machine that is not our own the same loader differs by a tenth from one second to the next. So profiled and
unprofiled are compared within each of many short turns, off and on and on and off, of one epoch: what drifts hits both
alike. The time in which samplers start and end is left out. `null` is the same with nobody who looks: how far it is
from 1 says how much the other can be believed.
"""

from __future__ import annotations

import gc
import time
from array import array
from typing import Any

import numpy as np
from penstock import DataLoader

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import warm_up
from tests.benchmarks.workloads import WORKLOADS

TURN = 0.6
"""Seconds with or without a profile."""
SETTLING = 0.1
"""Seconds of a turn's beginning that do not count."""
ORDER = (False, True, True, False)
MOST_A_SECOND = 60_000
"""Batches for whose moments there is room."""


def measure(variant: str, quick: bool, *, workload: str, workers: int, seconds: float, rate: float = 50.0) -> Measures:
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    loader: DataLoader[Any] = DataLoader(
        dataset, spec.batch_size, num_workers=workers, persistent_workers=True, monitor=False, refresh="never"
    )
    warm_up(loader, spec, dataset)
    dataset.length = spec.batch_size * 10**7  # one epoch, never read to its end
    turns = max(int((seconds / 10 if quick else seconds) / TURN) // 4, 2) * 4
    room = array("q", bytes(8 * MOST_A_SECOND * int(turns * TURN + 2)))
    stamps, edges, looks = read(loader, turns, room, rate if variant == "profiled" else 0.0)
    loader.close()
    if variant == "profiled" and not looks:
        raise RuntimeError("not available: nothing was seen")
    rates = [_rate(stamps, begin, end) for begin, end in edges]
    off = np.array([value for place, value in enumerate(rates) if not ORDER[place % 4]])
    on = np.array([value for place, value in enumerate(rates) if ORDER[place % 4]])
    off, on = off.reshape(-1, 2).sum(1), on.reshape(-1, 2).sum(1)
    draw = np.random.default_rng(0).integers(0, len(on), (2000, len(on)))
    shares = np.sort(on[draw].sum(1) / off[draw].sum(1))
    return {
        "batches_per_s": float(off.mean() / 2),
        "ratio": float(on.sum() / off.sum()),
        "error": float(shares[1949] - shares[50]) / 2,
        "looks_per_s": looks / max(sum(end - begin for begin, end in edges) / 2e9, 1e-9),
    }


def read(
    loader: DataLoader[Any], turns: int, room: array[int], rate: float
) -> tuple[Any, list[tuple[int, int]], float]:
    """The moment of each batch, the turns' begin and end (ns), and how many looks were taken at all workers."""
    gc.collect()
    clock, iterator = time.monotonic_ns, iter(loader)
    next(iterator)
    edges: list[tuple[int, int]] = []
    profiling, seen, number = None, 0.0, 0
    for turn in range(turns):
        if ORDER[turn % 4] and profiling is None and rate:
            profiling = loader.profiling(rate=rate)
        elif not ORDER[turn % 4] and profiling is not None:
            profiling.stop()
            profile = profiling.result()
            seen += (profile.total() + sum(profile.idle.values()) / 1e9) * rate
            profiling = None
        begin = clock() + int(SETTLING * 1e9)
        end = clock() + int(TURN * 1e9)
        edges.append((begin, end))
        for _ in iterator:
            room[number] = now = clock()
            number += 1
            if now > end:
                break
    return np.frombuffer(room, np.int64)[:number], edges, seen


def _rate(stamps: Any, begin: int, end: int) -> float:
    """Batches a second."""
    first, last = np.searchsorted(stamps, [begin, end])
    return float(last - first) / (end - begin) * 1e9
