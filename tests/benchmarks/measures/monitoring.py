"""What being watched costs, by a server that is well or that fails.

On a machine that is not our own the same loader differs by a tenth from one second to the next, which hides what is to
be measured: a few milliseconds every 0.2 s. So watched and unwatched are compared within each of these periods. The
moments at which the publisher's thread takes a snapshot are known, and so is the moment of every batch. For each period
the batches that came are set against those that would have come had training gone on all the time as it did far from
the snapshot; sums over all periods give the share of the unwatched throughput. What a watched loader does with every
batch, to keep its span, is not seen that way: it is measured beside, in µs, and taken off.

`null` is the same with nobody who publishes: how far it is from 1 says how much the others can be believed.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from array import array
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from penstock import DataLoader
from penstock.telemetry.spans import SpanRing

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import warm_up
from tests.benchmarks.server import Server, unused_port
from tests.benchmarks.workloads import WORKLOADS

SIGNALS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
PERIOD = 200_000_000
"""ns between two snapshots."""
BEFORE, AFTER = 5_000_000, 45_000_000
"""ns around a snapshot that may be disturbed by it: the server's work and its answer are over by then."""
MOST_A_SECOND = 60_000
"""Batches for whose moments there is room."""
SETTLING = 1.5
"""Seconds until the connection is there and the spans' stride is found."""


def measure(variant: str, quick: bool, *, workload: str, workers: int, seconds: float) -> Measures:
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    loader: DataLoader[Any] = DataLoader(
        dataset, spec.batch_size, num_workers=workers, persistent_workers=True, monitor=False
    )
    warm_up(loader, spec, dataset)
    dataset.length = spec.batch_size * 10**7  # one epoch, never read to its end
    seconds = seconds / 10 if quick else seconds
    with ExitStack() as stack:
        server = stack.enter_context(Server()) if variant in ("live", *SIGNALS) else None
        if server is not None and variant in SIGNALS:
            stack.callback(server.send, signal.SIGCONT)
            blow = threading.Timer(SETTLING + seconds / 4, server.send, (SIGNALS[variant],))
            stack.callback(blow.cancel)
            blow.start()
        moments: list[int] = []
        if variant != "null":
            url = f"http://127.0.0.1:{unused_port()}" if server is None else server.url
            loader._penstock.options = replace(loader._penstock.options, monitor=url)
            loader._penstock.publisher = None
            loader._penstock._publish()
            note_snapshots(loader._penstock.publisher, moments)
        room = array("q", bytes(8 * MOST_A_SECOND * int(seconds + 1)))  # in memory before anything is measured
        read(loader, SETTLING, room)
        before, used = resident(), publisher_seconds(loader._penstock.publisher)
        stamps = read(loader, seconds, room)
        used = publisher_seconds(loader._penstock.publisher) - used
        growth = resident() - before
        if variant in ("live", *SIGNALS) and server is not None and not moments:
            raise RuntimeError("not available: a watched loader took no snapshot")
        if variant == "live" and server is not None and not server.received():
            raise RuntimeError("not available: a watched loader's server received nothing")
    loader.close()
    first, last = int(stamps[0]), int(stamps[-1])
    if variant == "null":
        moments = list(range(first, last, PERIOD))
    rate = len(stamps) / seconds
    share, low, high = compare(stamps, np.array([moment for moment in moments if first < moment < last]))
    spans = 0.0 if variant == "null" else rate * span_seconds(rate)
    return {
        "batches_per_s": rate,
        "ratio": share - spans,
        "error": (high - low) / 2,
        "spans_percent": 100 * spans,
        "publisher_percent": 100 * used / seconds,
        "growth_mb": max(growth, 0) / 1e6,
    }


def read(loader: DataLoader[Any], seconds: float, room: array[int]) -> Any:
    """Read for so long; returns the moment of each batch, ns."""
    gc.collect()
    clock = time.monotonic_ns
    iterator = iter(loader)
    next(iterator)
    end = clock() + int(seconds * 1e9)
    for number, _ in enumerate(iterator):
        room[number] = now = clock()
        if now > end:
            return np.frombuffer(room, np.int64)[: number + 1]
    raise RuntimeError("the epoch was too short")


def note_snapshots(publisher: Any, moments: list[int]) -> None:
    gatherer = publisher._gatherer
    look = gatherer.look

    def noted(now: float, last: bool = False) -> None:
        moments.append(time.monotonic_ns())
        look(now, last)

    gatherer.look = noted


def compare(stamps: Any, moments: Any) -> tuple[float, float, float]:
    """The share of the undisturbed throughput, and the bounds within which it lies with a chance of 95 %."""
    came, expected = [], []
    for this, following in pairwise(moments):
        if not 0.75 * PERIOD < following - this < 1.5 * PERIOD:
            continue
        begin, calm, end = np.searchsorted(stamps, [this - BEFORE, this + AFTER, following - BEFORE])
        came.append(end - begin)
        expected.append((end - calm) / (following - BEFORE - this - AFTER) * (following - this))
    if len(came) < 2:
        raise RuntimeError("not available: too few snapshots were taken")
    real, ideal = np.array(came, float), np.array(expected)
    draw = np.random.default_rng(0).integers(0, len(real), (2000, len(real)))
    shares = np.sort(real[draw].sum(1) / ideal[draw].sum(1))
    return float(real.sum() / ideal.sum()), float(shares[50]), float(shares[1949])


def span_seconds(rate: float) -> float:
    """What it costs to keep the spans of one batch, at a rate of so many a second."""
    ring = SpanRing()
    ring.watch(0)
    ring.stride = max(1, 1 << int(np.ceil(np.log2(max(rate / 250, 1)))))
    turns = 100_000
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for number in range(turns):
            if ring.stride and number % ring.stride == 0:
                ring.add((0, -1, number), 0, 1, 2, 3, 4)
                ring.yielded((0, -1, number), time.monotonic_ns())
        watched = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(turns):
            pass
        best = min(best, watched - (time.perf_counter() - start))
    return max(best, 0.0) / turns


def publisher_seconds(publisher: Any) -> float:
    """Processor time of the publisher's thread."""
    if not publisher:
        return 0.0
    return int(Path(f"/proc/self/task/{publisher._thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
