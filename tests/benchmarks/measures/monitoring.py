"""What being watched costs: the same loader in turns unwatched and watched, by a server that is well or that fails.

Rounds of one and the same loader differ by more than what is to be measured, by up to a third on a machine that is not
our own. So the two are compared in pairs, one right after the other, in one process and with the same workers, many
times; the order within a pair alternates, and of all ratios the median counts. `null` compares unwatched with
unwatched: how far it is from 1 says how much the others can be believed.
"""

from __future__ import annotations

import gc
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loader import DataLoader
from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import time_epoch, warm_up
from tests.benchmarks.server import Server, unused_port
from tests.benchmarks.workloads import WORKLOADS, Samples, Workload

SIGNALS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
TURN = 0.5
"""Seconds of loading, at the least: two or three snapshots."""


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int, pairs: int) -> Measures:
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    loader: DataLoader[Any] = DataLoader(
        dataset, spec.batch_size, num_workers=workers, persistent_workers=True, monitor=False
    )
    warm_up(loader, spec, dataset)
    dataset.length = spec.batch_size * batches
    turn = Turn(loader, spec, dataset)
    turn.take()
    ratios, unwatched, spent, growth = [], [], [], 0
    with ExitStack() as servers:
        server = servers.enter_context(Server()) if variant in ("live", "stopped") else None
        for number in range(4 if quick else pairs):
            speed = {}
            for watch in (False, True) if number % 2 else (True, False):
                before = resident()
                if not watch or variant == "null":
                    speed[watch] = turn.take()
                    continue
                with watched(loader, variant, server) as publisher:
                    used = publisher_seconds(publisher)
                    began = time.perf_counter()
                    speed[True] = turn.take()
                    spent.append((publisher_seconds(publisher) - used) / (time.perf_counter() - began))
                growth = max(growth, resident() - before)
            ratios.append(speed[True] / speed[False])
            unwatched.append(speed[False])
    loader.close()
    return {
        "batches_per_s": statistics.median(unwatched),
        "ratio": statistics.median(ratios),
        "spread": statistics.quantiles(ratios)[2] - statistics.quantiles(ratios)[0],
        "publisher_percent": 100 * statistics.median(spent) if spent else 0.0,
        "growth_mb": growth / 1e6,
    }


class Turn:
    """Whole epochs until they took long enough."""

    def __init__(self, loader: DataLoader[Any], spec: Workload, dataset: Samples) -> None:
        self._loader, self._spec, self._dataset = loader, spec, dataset

    def take(self) -> float:
        """Batches a second."""
        gc.collect()
        came, seconds = 0, 0.0
        while seconds < TURN:
            some, elapsed = time_epoch(self._loader, self._spec, self._dataset)
            came, seconds = came + some, seconds + elapsed
        return came / seconds


@contextmanager
def watched(loader: DataLoader[Any], variant: str, server: Server | None) -> Iterator[Any]:
    """Publish as `monitor=` would; what is to befall the server befalls it in mid-turn."""
    with ExitStack() as stack:
        if variant == "killed":
            server = stack.enter_context(Server())
        elif variant == "stopped" and server is not None:
            server.send(signal.SIGCONT)
        loader.monitor = f"http://127.0.0.1:{unused_port()}" if server is None else server.url
        loader._publisher = None
        loader._publish()
        publisher = loader._publisher
        if server is not None:
            wait_until_welcome(publisher)
        blow = threading.Timer(TURN / 4, server.send, (SIGNALS[variant],)) if server and variant in SIGNALS else None
        if blow is not None:
            blow.start()
        try:
            yield publisher
        finally:
            if blow is not None:
                blow.cancel()
            if server is not None:
                server.send(signal.SIGCONT)
            publisher.close(flush=0.2)
            loader.monitor, loader._publisher = False, False
            loader.ledger.spans.stride = 0


def wait_until_welcome(publisher: Any) -> None:
    """The cost of a publisher that reaches nobody is another figure."""
    deadline = time.monotonic() + 10
    while not publisher._welcomed:
        if time.monotonic() > deadline:
            raise RuntimeError("not available: the server did not welcome the loader")
        time.sleep(0.01)


def publisher_seconds(publisher: Any) -> float:
    """Processor time of the publisher's thread."""
    return int(Path(f"/proc/self/task/{publisher._thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
