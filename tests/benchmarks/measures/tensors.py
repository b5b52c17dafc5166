"""An epoch over tensors in memory, against indexing them oneself with the indices at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import penstock
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.benchmarks.case import Measures

ROWS, COLUMNS = 500_000, 100


def measure(variant: str, quick: bool, *, batch_size: int) -> Measures:
    torch.set_num_threads(1)  # else indexing, and it alone, takes all cores for each batch
    dataset = TensorDataset(torch.rand(ROWS, COLUMNS), torch.arange(ROWS))
    epoch = OPENERS[variant](dataset, batch_size)
    times = []
    for _ in range(2 if quick else 6):
        start = time.perf_counter()
        rows = sum(len(batch[1]) for batch in epoch())
        times.append(time.perf_counter() - start)
        if rows != ROWS:
            raise RuntimeError(f"{rows} rows came")
    return {"epoch_s": min(times)}


def _direct(dataset: TensorDataset, batch_size: int) -> Callable[[], Iterable[Any]]:
    def epoch() -> Iterator[Any]:
        order = torch.randperm(ROWS)
        for first in range(0, ROWS, batch_size):
            rows = order[first : first + batch_size]
            yield [tensor[rows] for tensor in dataset.tensors]

    return epoch


def _loaded(make: Any, **options: Any) -> Callable[[TensorDataset, int], Callable[[], Iterable[Any]]]:
    def opened(dataset: TensorDataset, batch_size: int) -> Callable[[], Iterable[Any]]:
        loader = make(dataset, batch_size, shuffle=True, **options)
        return lambda: loader

    return opened


OPENERS: dict[str, Callable[[TensorDataset, int], Callable[[], Iterable[Any]]]] = {
    "direct": _direct,
    "torch": _loaded(DataLoader),
    "inline": _loaded(penstock.DataLoader, monitor=False),
    "workers": _loaded(penstock.DataLoader, monitor=False, num_workers=2, persistent_workers=True),
}
