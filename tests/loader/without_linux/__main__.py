"""A training that uses the whole pool and says what it saw, as JSON; run by `test_portability.py`."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch
from penstock.pool import memory
from penstock.pool.crews import channel, zygote

from tests.loader.support import DataLoader, Full, Stream, open_descriptors, workers_of


class Endless(Full):
    """Its first sample takes longer than any test."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3600)
        return super().__getitem__(index)


def features() -> dict[str, bool]:
    """What a test must know to be off."""
    return {
        "memfd": hasattr(os, "memfd_create"),
        "pidfd": hasattr(os, "pidfd_open"),
        "eventfd": hasattr(os, "eventfd"),
        "prctl": hasattr(ctypes.CDLL(None), "prctl"),
        "mlock": memory.HAS_MLOCK,
        "lifeline not needed": zygote.HAS_PRCTL,
        "close on exec": bool(channel._CLOSE_ON_EXEC),
    }


def map_style(method: str) -> list[int]:
    """Large batches; on the way a pause, a resize, and a worker that is killed."""
    train = DataLoader(Full(120, 20_000), batch_size=2, num_workers=2, multiprocessing_context=method)
    iterator, seen, kept = iter(train), [], []
    for number, batch in enumerate(iterator):
        seen += [int(sample[0]) for sample in batch]
        kept.append(batch)
        if number == 5:
            train.pause()
            train.resume()
            train.resize(4)
        if number == 20:
            os.kill(workers_of(iterator)[0].pid, signal.SIGKILL)
        if number == 40:
            train.resize(1)
    assert all(bool((batch == batch[:, :1]).all()) for batch in kept), "batches that were kept have changed"
    return seen


def iterable_style(method: str) -> list[list[int]]:
    """Two epochs of workers that stay."""
    train = DataLoader(
        Stream("big", 30), batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    epochs = [sorted(int(sample[0, 0]) for batch in train for sample in batch) for _ in range(2)]
    train.close()
    return epochs


def pinned(method: str) -> Any:
    """What is said of a worker, and of pinning, where the system offers neither."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train = DataLoader(Full(4), num_workers=1, pin_memory=True, multiprocessing_context=method)
        iterator = iter(train)
        next(iterator)
        stats = train.stats()
        train.close()
    said = [str(each.message) for each in caught if "pin_memory" in str(each.message)]
    return {"mode": stats.pin.mode, "said": said, "rss": [worker.rss for worker in stats.workers]}


def hang(method: str) -> None:
    """Print the zygote's and the workers' pids, with the workers in a sample that never ends."""
    train = DataLoader(Endless(), num_workers=2, multiprocessing_context=method, max_retries=100)
    iterator = iter(train)
    workers = workers_of(iterator)
    zygote_pid = iterator.pool.crews[0].nursery.pid
    print(json.dumps([zygote_pid, *(worker.pid for worker in workers)]), flush=True)
    next(iterator)


def everything(method: str) -> None:
    facts: dict[str, Any] = {"features": features(), "descriptors": []}
    for _ in range(2):
        facts |= {"map": map_style(method), "iterable": iterable_style(method), "pinned": pinned(method)}
        gc.collect()
        facts["descriptors"].append(open_descriptors())
    print(json.dumps(facts))


def brief(method: str) -> None:
    print(json.dumps({"features": features(), "map": map_style(method)}))


if __name__ == "__main__":
    {"everything": everything, "brief": brief, "hang": hang}[sys.argv[1]](sys.argv[2])
