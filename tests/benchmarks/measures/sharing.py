"""Memory that processes share: how much more of it there is with more workers, or with more ranks.

What is compared is the memory of the thing that is shared, and not of interpreters: that of whole process trees with
it, less that of the same trees without it. It is all shared memory, mapped or not, and what processes have privately,
after an epoch in which everything was read.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import penstock
from torch.utils.data import Dataset

from tests.benchmarks.case import Measures
from tests.benchmarks.process_tree import descendants, own_size, shared_memory
from tests.benchmarks.workloads import ManyObjects

SAMPLE = 1 << 20
"""Bytes of one sample in the cache."""


class Records(Dataset[int]):
    """File names and labels, all of which are looked at: in a list, or made when they are asked for."""

    def __init__(self, megabytes: int, listed: bool) -> None:
        self.length = megabytes * 1_000_000 // ManyObjects.RECORD_BYTES
        self.records: Any = penstock.SharedList(map(self._made, range(self.length))) if listed else None

    def _made(self, number: int) -> tuple[str, int]:
        return f"/data/train/{number:058d}", number + 1_000_000

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return (self._made(index) if self.records is None else self.records[index])[1]


class Decoded(Dataset[Any]):
    """Arrays of a megabyte, as images would be."""

    def __init__(self, megabytes: int) -> None:
        self.length = megabytes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full(SAMPLE, index % 251, np.uint8)


def rank(kind: str, megabytes: int, workers: int, shared: bool) -> None:
    """One training process: reads everything, says so, and stays until its input ends."""
    dataset: Any
    if kind == "list":
        dataset = Records(megabytes, shared)
    else:
        dataset = Decoded(megabytes)
        if shared:
            dataset = penstock.cached(dataset, memory=f"{2 * megabytes} MB")
    batch_size = 4096 if kind == "list" else 4
    loader: Any = penstock.DataLoader(
        dataset, batch_size, num_workers=workers, persistent_workers=True, monitor=False, prefetch_epochs=False
    )
    for _ in range(1 if kind == "list" else 2):
        for batch in loader:
            del batch
    print("read", flush=True)
    sys.stdin.read()
    loader.close()


def of_shared(kind: str, megabytes: int, workers: int, ranks: int) -> int:
    """Bytes that what is shared takes."""
    return taken(kind, megabytes, workers, ranks, True) - taken(kind, megabytes, workers, ranks, False)


def taken(kind: str, megabytes: int, workers: int, ranks: int, shared: bool) -> int:
    """Bytes that so many ranks take together, all of them at rest."""
    before = shared_memory()
    launch = {
        "MASTER_PORT": "1",
        "WORLD_SIZE": str(max(ranks, 2)),
        "TORCHELASTIC_RUN_ID": f"sharing {os.getpid()} {ranks}",
    }
    code = f"from tests.benchmarks.measures.sharing import rank; rank({kind!r}, {megabytes}, {workers}, {shared})"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, **launch}}
    with contextlib.ExitStack() as stack:
        started: list[Any] = []
        for _ in range(ranks):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", code], **pipes))
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            if process.stdout.readline() != b"read\n":
                raise RuntimeError("a rank has ended before it had read everything")
        pids = {pid for process in started for pid in descendants(process.pid)}
        found = sum(map(own_size, pids)) + shared_memory() - before
        for process in started:
            process.stdin.close()
        for process in started:
            process.wait(60)
    return found


def measure_workers(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    """What a SharedList takes with eight workers, and with one."""
    megabytes = 50 if quick else 500
    one, eight = (of_shared("list", megabytes, workers, 1) for workers in (1, 8))
    return {"more": eight / one, "one_mb": one / 1e6}


def measure_ranks(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    """What a cache of 300 MB takes with two ranks, and with one."""
    del quick
    one, two = (of_shared("cache", 300, 2, ranks) for ranks in (1, 2))
    return {"more": two / one, "one_mb": one / 1e6}
