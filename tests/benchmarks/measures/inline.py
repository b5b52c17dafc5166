"""Loading without workers against torch's, in turns in one process: how many times as fast, dataset by dataset."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import penstock
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.benchmarks.case import Measures
from tests.benchmarks.workloads import BigImages, Dictionaries, Integers


class Pairs(Integers):
    """An array of floats and a label a sample."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(100), index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(64_000))


def bare(samples: list[int]) -> list[int]:
    """A collate function that does nothing: what is left is the loader's own."""
    return samples


DATASETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tiny1": (Integers(8_000), {"batch_size": 1}),
    "tiny64": (Integers(64_000), {"batch_size": 64}),
    "dict20": (Dictionaries(1_000), {"batch_size": 32}),
    "big": (BigImages(256), {"batch_size": 16}),
    "pairs": (Pairs(10_000), {"batch_size": 64}),
    "stream": (Stream(), {"batch_size": 64}),
    "bare": (Integers(8_000), {"batch_size": 1, "collate_fn": bare}),
}


def measure(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    torch.set_num_threads(1)
    found = {}
    for name, (dataset, options) in DATASETS.items():
        theirs = DataLoader(dataset, **options)
        ours = penstock.DataLoader(dataset, **options, monitor=False)
        time_epoch(theirs), time_epoch(ours)
        gc.collect()
        gc.disable()
        ratios = []
        for turn in range(6 if quick else 30):
            first, second = (theirs, ours) if turn % 2 else (ours, theirs)
            times = {id(loader): time_epoch(loader) for loader in (first, second)}
            ratios.append(times[id(theirs)] / times[id(ours)])
        gc.enable()
        found[name] = median(ratios)
    return found


def time_epoch(loader: Iterable[Any]) -> float:
    """Processor time of this thread: others on the machine do not matter."""
    start = time.thread_time()
    for _ in loader:
        pass
    return time.thread_time() - start
