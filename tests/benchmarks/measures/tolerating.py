"""What bad samples cost: 1 % that fail and 0.1 % that hang, against an epoch without any.

The hangs' own time, `sample_timeout` each, is what was asked for, and is left out: what an epoch takes is set against
what it would take if nothing but that time were lost, and workers took up batch after batch as they became free. Where
a hang is among the last batches of an epoch, the others have nothing to do until its time is over: that is in it, too.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from typing import Any

from penstock import DataLoader
from torch.utils.data import Dataset

from tests.benchmarks.case import Measures

SAMPLE = 0.002
"""Seconds that a sample takes."""
TIMEOUT = 0.5
BATCH = 20


class Files(Dataset[Any]):
    def __init__(self, length: int, fails: bool, hangs: bool) -> None:
        self.order = random.Random(1).sample(range(length), length)
        self.fails, self.hangs = fails, hangs

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        file = self.order[index]
        if self.hangs and file % 1000 == 577:
            threading.Event().wait()
        if self.fails and file % 100 == 3:
            raise OSError(f"file {file} is corrupt")
        time.sleep(SAMPLE)
        return file


def measure(variant: str, quick: bool, *, workers: int, samples: int) -> Measures:
    """Epochs with and without bad samples take turns, so that what else the machine does hits both alike."""
    length = samples // 5 if quick else samples
    kinds = {"good": (False, False), "failing": (True, False), "hanging": (True, True)}
    taken = {"good": 0.0, variant: 0.0}
    for kind in ("good", variant, variant, "good"):
        taken[kind] += _epoch(Files(length, *kinds[kind]), workers)
    good, bad = (_at_best(Files(length, *kinds[kind]), workers) for kind in ("good", variant))
    return {"slower": 100 * ((taken[variant] / bad) / (taken["good"] / good) - 1)}


def _at_best(dataset: Files, workers: int) -> float:
    """Seconds of an epoch in which nothing is lost but the time of the samples that hang."""
    free = [0.0] * workers
    hanging = [dataset.hangs and file % 1000 == 577 for file in dataset.order]
    for batch in range(0, len(hanging), BATCH):
        hangs = hanging[batch : batch + BATCH]
        heapq.heapreplace(free, free[0] + len(hangs) * SAMPLE + sum(hangs) * TIMEOUT)
    return max(free)


def _epoch(dataset: Files, workers: int) -> float:
    """Seconds from the first batch to the last."""
    loader: DataLoader[Any] = DataLoader(
        dataset, BATCH, num_workers=workers, monitor=False, on_error="replace", sample_timeout=TIMEOUT, retries=0
    )
    batches = iter(loader)
    next(batches)
    began = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - began
