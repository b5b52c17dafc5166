"""How good predictions are: for every load and number of workers, what was predicted against what it then was.

Each load runs with its number of workers, says what half to four times as many would bring, and is then resized to each
of them and measured: what workers made, or what training took if that is less, as for receipts. Errors are of all loads
together: relative, with the share of those within their interval. It needs a machine of its own: where others take
processors, what they take changes between the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.multiprocessing
from penstock import DataLoader
from penstock.insight.receipts import Count
from torch.utils.data import Dataset

from tests.benchmarks.case import Measures

STEPS = (0.5, 1.0, 2.0, 4.0)


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Loaded(Dataset[Any]):
    """Samples that sleep, compute, wait for a lock or for one of a few channels, and some of which are slow."""

    def __init__(
        self,
        sleep: float = 0.0,
        compute: float = 0.0,
        slow: float = 0.0,
        held: float = 0.0,
        channels: int = 0,
        size: int = 1,
    ) -> None:
        self.sleep, self.compute, self.slow, self.held, self.size = sleep, compute, slow, held, size
        self.channels = torch.multiprocessing.get_context("fork").Semaphore(channels) if channels else None

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int) -> Any:
        if self.channels is not None:
            with self.channels:
                time.sleep(self.held)
        time.sleep(self.sleep + (self.slow if index % 200 == 77 else 0.0))
        spin(self.compute)
        return np.zeros(self.size, dtype=np.uint8)


@dataclass(frozen=True)
class LoadCase:
    dataset: Loaded
    workers: int = 2
    own: float = 0.0
    """Training's own time with a batch, s."""
    budget: int | None = None


def cases() -> dict[str, LoadCase]:
    return {
        "sleep": LoadCase(Loaded(sleep=0.005), 4),
        "processor": LoadCase(Loaded(compute=0.004), 2),
        "mixed": LoadCase(Loaded(sleep=0.004, compute=0.001), 2),
        "skewed": LoadCase(Loaded(sleep=0.003, slow=0.3), 4),
        "lock": LoadCase(Loaded(sleep=0.001, held=0.002, channels=1), 4),
        "storage": LoadCase(Loaded(held=0.004, channels=3), 4),
        "consumer": LoadCase(Loaded(sleep=0.004), 2, own=0.012),
        "window": LoadCase(Loaded(sleep=0.003, slow=0.2, size=1 << 18), 4, budget=16 << 20),
    }


def measure(_variant: str, quick: bool, *, seconds: float) -> Measures:
    seconds = seconds / 4 if quick else seconds
    errors: list[float] = []
    inside, took = 0, 0.0
    for name, case in cases().items():
        for predicted, measured, answered in _tried(case, seconds):
            error = abs(predicted.batches / measured - 1)
            errors.append(error)
            inside += predicted.low <= measured <= predicted.high
            took = max(took, answered)
            print(
                f"{name:<10} {case.workers:>2} → {predicted.workers:>2}: predicted {predicted.batches:8.1f} "
                f"({predicted.low:.1f} to {predicted.high:.1f}), measured {measured:8.1f}: {100 * error:.1f} %",
                flush=True,
            )
    errors.sort()
    return {
        "median_error": 100 * errors[len(errors) // 2],
        "p95_error": 100 * errors[int(0.95 * (len(errors) - 1))],
        "inside": 100 * inside / len(errors),
        "ms": 1000 * took,
    }


def _tried(case: LoadCase, seconds: float) -> Iterator[Any]:
    loader: DataLoader[Any] = DataLoader(
        case.dataset,
        4,
        num_workers=case.workers,
        multiprocessing_context="fork",
        memory_budget=case.budget,
        monitor=False,
    )
    with loader:
        batches, count = iter(loader), Count()
        _rate(loader, count, batches, case, 1.0)
        _rate(loader, count, batches, case, seconds)
        numbers = sorted({max(1, int(case.workers * step)) for step in STEPS})
        started = time.perf_counter()
        predictions = [loader.predict(number) for number in numbers]
        answered = time.perf_counter() - started
        for prediction in predictions:
            loader.resize(prediction.workers)
            _rate(loader, count, batches, case, seconds / 2)
            yield prediction, _rate(loader, count, batches, case, seconds), answered
        del batches


def _rate(loader: DataLoader[Any], count: Count, batches: Iterator[Any], case: LoadCase, seconds: float) -> float:
    before, began = count.moment(loader.stats()), time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        time.sleep(case.own)
    after = count.moment(loader.stats())
    return min(after.made - before.made, after.taken - before.taken) / (after.at - before.at)
