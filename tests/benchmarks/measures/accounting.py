"""What telemetry and the digest cost the training thread for one batch: its calls on the real objects, no others."""

from __future__ import annotations

import time

import torch
from penstock.costs import count_batch
from penstock.digest import Digest
from penstock.fetching import TIMED_STRIDE, MapFetcher
from penstock.pool.observer import Cause
from penstock.sizes import measure as measure_size
from penstock.telemetry.costs import InlineCosts
from penstock.telemetry.ledger import Ledger

from tests.benchmarks.case import Measures

BATCH = list(range(64))


def measure(variant: str, quick: bool) -> Measures:
    del variant
    turns = 20_000 if quick else 200_000
    runs = (_ready, _waited, _inline, _digest)
    ready, waited, inline, digest = (min(run(turns) for _ in range(5)) for run in runs)
    return {
        "ready_us": ready - digest,
        "waited_us": waited - digest,
        "inline_us": inline - digest,
        "digest_us": digest,
    }


def _ready(turns: int) -> float:
    """µs a batch that is there when it is asked for."""
    ledger = Ledger()
    times, spans, clock = ledger.times, ledger.spans, time.monotonic_ns
    start = time.perf_counter()
    for number in range(turns):
        ledger.enter(0)
        ledger.batches, ledger.samples, ledger.bytes, ledger.digest.value = ledger.after(0, number, BATCH, 7, 64, 512)
        times.exit(clock())
        if spans.stride:
            raise RuntimeError("nobody watches")
    taken = time.perf_counter() - start
    _check(ledger, turns)
    return taken / turns * 1e6


def _waited(turns: int) -> float:
    """µs a batch that training had to wait for, the waiting itself left out."""
    ledger = Ledger()
    times, clock = ledger.times, time.monotonic_ns
    start = time.perf_counter()
    for number in range(turns):
        ledger.enter(0)
        times.wait(clock(), Cause.STARVATION)
        times.leave(clock())
        ledger.batches, ledger.samples, ledger.bytes, ledger.digest.value = ledger.after(0, number, BATCH, 7, 64, 512)
        times.exit(clock())
    taken = time.perf_counter() - start
    _check(ledger, turns)
    return taken / turns * 1e6


def _inline(turns: int) -> float:
    """µs a batch of cheap samples that training loads itself, with the count of their times."""
    ledger, costs = Ledger(), InlineCosts(0, 64)
    times, spans, clock = ledger.times, ledger.spans, time.monotonic_ns
    fetcher = MapFetcher(BATCH, auto_collation=True)
    batch = torch.zeros(64)
    fetcher.fetch(BATCH)
    stamps: list[int] = fetcher.stamps
    start = time.perf_counter()
    for number in range(turns):
        ledger.enter(0)
        times.wait(clock(), Cause.STARVATION)
        clock()
        times.leave(clock())
        fetcher.stamps = [] if number % TIMED_STRIDE else stamps
        if fetcher.stamps or fetcher.surprise:
            costs.slowest.add_batch(number, -1, BATCH, count_batch(fetcher, costs.counts, 0))
        if spans.stride:
            raise RuntimeError("nobody watches")
        ledger.batches, ledger.samples, ledger.bytes, ledger.digest.value = ledger.after(
            0, number, BATCH, 7, 64, measure_size(batch)[1]
        )
        times.exit(clock())
    taken = time.perf_counter() - start
    _check(ledger, turns)
    return taken / turns * 1e6


def _digest(turns: int) -> float:
    """µs a batch for the proof of sameness, which the two above do as well."""
    digest = Digest()
    start = time.perf_counter()
    for number in range(turns):
        digest.value = digest.after(0, number, BATCH, 7)
    return (time.perf_counter() - start) / turns * 1e6


def _check(ledger: Ledger, turns: int) -> None:
    if ledger.batches != turns:
        raise RuntimeError(f"{ledger.batches} batches were counted, not {turns}")
