"""What being watched costs: epochs unwatched, watched, and with a server that fails in three ways."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loader import DataLoader
from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import time_epoch, warm_up
from tests.benchmarks.server import Server, unused_port
from tests.benchmarks.workloads import WORKLOADS, Integers

SIGNALS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int) -> Measures:
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    least = 0.8 if quick else 3.0
    if variant != "off":
        require_publishing()
    with watched(variant, after=least / 3) as monitor:
        loader: DataLoader[Any] = DataLoader(
            dataset, spec.batch_size, num_workers=workers, persistent_workers=True, monitor=monitor
        )
        warm_up(loader, spec, dataset)
        dataset.length = spec.batch_size * (batches // 4 if quick else batches)
        before, timed, seconds = resident(), 0, 0.0
        while seconds < least:
            came, elapsed = time_epoch(loader, spec, dataset)
            timed, seconds = timed + came, seconds + elapsed
        growth = resident() - before
        loader.close()
    return {"batches_per_s": timed / seconds, "growth_mb": growth / 1e6}


def require_publishing() -> None:
    """Raise unless a watched loader publishes: the cost of a publisher that does nothing is no figure."""
    with Server() as server:
        loader: DataLoader[Any] = DataLoader(Integers(8), num_workers=1, monitor=server.url)
        list(loader)
        loader.close()
        deadline = time.monotonic() + 3
        while not server.received():
            if time.monotonic() > deadline:
                raise RuntimeError("not available: a watched loader's server received nothing")
            time.sleep(0.05)


@contextmanager
def watched(variant: str, after: float) -> Iterator[str | bool]:
    """What `monitor=` is given; what is to befall the server befalls it in mid-run."""
    if variant == "off":
        yield False
    elif variant == "unreachable":
        yield f"http://127.0.0.1:{unused_port()}"
    else:
        with Server() as server:
            if variant in SIGNALS:
                blow = threading.Timer(after, server.send, (SIGNALS[variant],))
                blow.start()
            yield server.url


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
