"""How close the tuner gets to the best fixed number of workers: in the simulated world, and with real loaders."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from penstock import DataLoader
from torch.utils.data import Dataset

from tests.benchmarks.case import Measures
from tests.loader.tuning import ranks
from tests.loader.tuning.loads import LOADS
from tests.loader.tuning.trial import fixed, numbers, tuned

FEW = 0.97
"""The fewest workers are those that reach this share of the best."""


def measure_simulated(_variant: str, quick: bool, load: str) -> Measures:
    """One load, several courses of chance. The worst of them counts."""
    until = 420.0
    found: dict[str, float] = {"share": 2.0, "surplus": -1.0, "changes": 0.0}
    for seed in range(2 if quick else 5):
        course = tuned(LOADS[load], until, seed)
        change = LOADS[load].change or 0.0
        since = course.settled_at(change)
        rates = {n: fixed(load, n, until, seed).rate(since, until) for n in numbers(LOADS[load].most)}
        best = max(rates.values())
        fewest = min(n for n, rate in rates.items() if rate >= FEW * best)
        held = [at for at, step in course.steps if step.what == "hold" and at >= change]
        settled = max(since, held[0]) if held else until - 1
        found["share"] = min(found["share"], course.rate(since, until) / best)
        found["surplus"] = max(found["surplus"], course.workers[-1] - fewest - 0.1 * fewest)
        found["changes"] = max(found["changes"], course.changes(settled, until) / ((until - settled) / 60))
    return found


def measure_ranks(_variant: str, quick: bool) -> Measures:
    """Four ranks on two processors, one of which has data that is three times as slow."""
    until = 120.0 if quick else 300.0
    with tempfile.TemporaryDirectory() as folder:
        course, _ = ranks.tuned(Path(folder), until)
    since = course.settled_at()
    reached = course.rate(since, until)
    even = ranks.fixed((2, 2, 2, 2), until, apart=True).rate(since, until)
    splits = [(a, b, c, d) for a in (1, 2, 3, 4) for b in (1, 2) for c in (1, 2) for d in (1, 2)]
    best = max(ranks.fixed(split, until).rate(since, until) for split in splits)
    return {"of_even": reached / even, "share": reached / best}


class Made(Dataset[torch.Tensor]):
    """Batches that cost what they are told to."""

    def __init__(self, cost: Callable[[int], None]) -> None:
        self._cost = cost

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> torch.Tensor:
        self._cost(index)
        return torch.zeros(8)


def sleeping(_index: int) -> None:
    time.sleep(0.3)


def computing(_index: int) -> None:
    end = time.thread_time() + 0.04
    while time.thread_time() < end:
        pass


def with_tail(index: int) -> None:
    time.sleep(1.0 if index % 100 == 50 else 0.05)


class Locked:
    """10 ms with a lock that all workers share, 20 ms without it: three workers fill it."""

    def __init__(self) -> None:
        self._lock = torch.multiprocessing.get_context("fork").Lock()

    def __call__(self, index: int) -> None:
        with self._lock:
            time.sleep(0.01 * (0.7 + 0.6 * (index * 37 % 100) / 100))
        time.sleep(0.02 * (0.7 + 0.6 * (index * 61 % 100) / 100))


class Stored:
    """Storage that serves six at once, 60 ms each; more of them wait."""

    def __init__(self) -> None:
        self._places = torch.multiprocessing.get_context("fork").Semaphore(6)

    def __call__(self, _index: int) -> None:
        with self._places:
            time.sleep(0.06)


def phased(index: int) -> None:
    """In the middle of the epoch samples become four times as slow."""
    time.sleep(0.04 if index < PHASE else 0.16)


PHASE = 800
"""The sample from which on `phased` ones are slow: the tuner has settled by then."""

COSTS: dict[str, tuple[Callable[[int], None], float]] = {
    "sleep": (sleeping, 0.02),
    "processor": (computing, 0.004),
    "tail": (with_tail, 0.01),
    "lock": (Locked(), 0.002),
    "storage": (Stored(), 0.002),
    "phase": (phased, 0.01),
    "foreign": (computing, 0.004),
}
"""Load → what a batch of one sample costs, and the seconds of a training step."""


@contextlib.contextmanager
def _company(load: str) -> Iterator[None]:
    """A foreign process that always wants a processor, if the load is to have one beside it."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"])] if load == "foreign" else []
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure_real(_variant: str, quick: bool, load: str, tried: tuple[int, ...], start: int = 1) -> Measures:
    """A real loader that is tuned from `start` workers on, against one that is given each of these numbers.

    After a change in mid-epoch, what counts is what comes 30 s later.
    """
    measured, rates = 10.0 if quick else 20.0, {}
    with _company(load):
        with _loader(load, num_workers=start, autotune=True) as loader:
            batches = iter(loader)
            while load == "phase" and loader.stats().batches < PHASE:
                _train(batches, load, 1.0)
            _train(batches, load, 30.0)
            while loader.stats().batches < 300:
                _train(batches, load, 1.0)
            reached = _train(batches, load, 2 * measured)
            workers = loader.num_workers
        for number in tried:
            with _loader(load, later=True, num_workers=number) as loader:
                batches = iter(loader)
                _train(batches, load, 3.0)
                rates[number] = _train(batches, load, measured)
    best = max(rates.values())
    fewest = min(number for number, rate in rates.items() if rate >= FEW * best)
    return {"share": reached / best, "surplus": workers - fewest - 0.1 * fewest, "workers": workers}


def measure_control(_variant: str, quick: bool, load: str, workers: int) -> Measures:
    """A/A: nothing is tuned and nothing changes, so that the later half must be as fast as the earlier one."""
    measured = 10.0 if quick else 30.0
    with _loader(load, num_workers=workers) as loader:
        batches = iter(loader)
        _train(batches, load, 5.0)
        earlier, later = _train(batches, load, measured), _train(batches, load, measured)
    return {"drift": 100 * abs(later / earlier - 1)}


def _loader(load: str, later: bool = False, **more: Any) -> DataLoader[torch.Tensor]:
    """`later`: as the load is after its change, if it has one."""
    indices = range(PHASE, 10**7) if later and load == "phase" else None
    return DataLoader(
        Made(COSTS[load][0]),
        batch_size=1,
        monitor=False,
        multiprocessing_context="fork",
        sampler=indices,
        **more,
    )


def _train(batches: Any, load: str, seconds: float) -> float:
    """Batches a second."""
    began, count, step = time.monotonic(), 0, COSTS[load][1]
    while time.monotonic() - began < seconds:
        next(batches)
        time.sleep(step)
        count += 1
    return count / (time.monotonic() - began)
