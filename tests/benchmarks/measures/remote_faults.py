"""Workers behind agents: the longest gap when something dies or stands still, a resize, and what a large dataset costs.

The agents are processes of this machine; for the death of a raylet, of a Ray cluster on this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from penstock import Agents, DataLoader, RayWorkers

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.remote import SECRET, agent
from tests.benchmarks.process_tree import descendants, own_size
from tests.benchmarks.workloads import Samples, Timed
from tests.ray_cluster import RayCluster

BEFORE = 2.0
"""Seconds for which batches flow before something happens,"""
AFTER = {"frozen": 9.0, "raylet": 9.0}
"""and after it, if not"""
USUALLY = 3.0


def measure_gap(variant: str, quick: bool, *, what: str) -> Measures:  # noqa: ARG001
    """The longest time without a batch. `what` becomes of one of two agents or of its worker: killed or frozen."""
    with _opened(Timed(1_000_000, 0.02), 4, agents=2) as (loader, pids):
        return {"gap_s": longest_gap(loader, lambda: _strike(loader, pids[0], what), AFTER.get(what, USUALLY))}


def longest_gap(loader: DataLoader[Any], strike: Callable[[], object], after: float) -> float:
    """Batches flow, something happens in another thread, and they flow on."""
    came, end, struck = [], float("inf"), None
    for _ in loader:
        now = time.monotonic()
        came.append(now)
        if struck is None and now - came[0] > BEFORE:
            struck, end = now, now + after
            threading.Thread(target=strike).start()
        if now > end:
            break
    return max(later - before for before, later in pairwise(came) if later > (struck or 0.0))


def _strike(loader: DataLoader[Any], root: int, what: str) -> None:
    there = descendants(root)
    if what == "worker":
        workers = [worker.pid for worker in loader.stats().workers]
        os.kill(next(pid for pid in workers if pid in there), signal.SIGKILL)
    elif what == "agent":
        for pid in there:
            os.kill(pid, signal.SIGKILL)
    elif what == "frozen":
        for pid in there:
            os.kill(pid, signal.SIGSTOP)
        threading.Timer(AFTER["frozen"], _go_on, [there]).start()


def _go_on(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def measure_raylet(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    """The longest time without a batch when the raylet of one of two nodes is killed, and all that it had ends."""
    cluster, ended = RayCluster(nodes=2, processors=2), list[Any]()

    def strike() -> None:
        raylet = cluster.raylet(cluster.nodes[0])
        there = {worker.pid for worker in loader.stats().workers} & set(descendants(raylet.pid))
        workers = list(map(psutil.Process, there))
        raylet.kill()
        raylet.wait()
        ended.extend(psutil.wait_procs(workers, AFTER["raylet"] / 2)[0])

    loader: DataLoader[Any] = DataLoader(
        Timed(1_000_000, 0.02), num_workers=4, workers=RayWorkers(cluster.address), monitor=False
    )
    try:
        gap = longest_gap(loader, strike, AFTER["raylet"])
    finally:
        loader.close()
        cluster.end()
    if len(ended) != 2:
        raise RuntimeError(f"{len(ended)} workers ended with their raylet, not 2")
    return {"gap_s": gap}


def measure_resize(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    """From the call until the number of workers has doubled."""
    with _opened(Timed(1_000_000, 0.02), 4, agents=1) as (loader, _):
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        ended = threading.Event()
        reader = threading.Thread(target=lambda: _take(batches, ended))
        reader.start()
        began = time.perf_counter()
        outcome = loader.resize(8)
        seconds = time.perf_counter() - began
        ended.set()
        reader.join()
    if outcome.actual != 8:
        raise RuntimeError(f"there are {outcome.actual} workers")
    return {"seconds": seconds}


def _take(batches: Iterator[Any], ended: threading.Event) -> None:
    """As training does."""
    for _ in batches:
        if ended.is_set():
            return


class Large(Samples):
    """500 MB of numbers, and samples that cost nothing."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.numbers = torch.arange(500_000_000 // 8)

    def __getitem__(self, index: int) -> int:
        return int(self.numbers[index])


def measure_large(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    """From `iter()` until 16 workers are up, and what agent, session, zygote and workers take in all then."""
    dataset = Large(1_000_000)
    with _opened(dataset, 16, agents=1) as (loader, pids):
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        while sum(worker.batches > 0 for worker in loader.stats().workers) < 16:
            next(batches)
        seconds = time.perf_counter() - began
        memory = sum(map(own_size, descendants(pids[0])))
    return {"seconds": seconds, "bytes": float(memory)}


@contextlib.contextmanager
def _opened(dataset: Any, workers: int, agents: int) -> Iterator[tuple[DataLoader[Any], list[int]]]:
    """A loader, and the processes of its agents."""
    with contextlib.ExitStack() as undo:
        before = set(descendants(os.getpid()))
        addresses, pids = [], []
        for _ in range(agents):
            addresses.append(undo.enter_context(agent()))
            pids.append(min(set(descendants(os.getpid())) - before))
            before = set(descendants(os.getpid()))
        loader: DataLoader[Any] = DataLoader(
            dataset, num_workers=workers, workers=Agents(addresses, token=SECRET), monitor=False, max_workers=16
        )
        undo.callback(loader.close)
        yield loader, pids
