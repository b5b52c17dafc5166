"""Is what limits a training named rightly, and how soon? Constructed trainings of which the truth is known.

The judge is told as often as a dashboard would be: five times a second. What counts is how long after the last change
(the start of the epoch's batches, a resize, a resume, another load) the limit is named for good.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from penstock import DataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

from tests.accelerator import install
from tests.benchmarks.case import Measures

SECONDS = 6.0
"""For how long a training goes on after its last change."""
LATE = 3.0
"""Seconds after a change from which on what is said must be right."""


def spin(seconds: float) -> None:
    """Compute for so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def store(seconds: float) -> None:
    """Wait for the disk for about so long."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < end:
            os.write(file.fileno(), bytes(65536))
            os.fsync(file.fileno())


class Work(Dataset[torch.Tensor]):
    """Every batch is one sample; how it is made, a function of its index says."""

    def __init__(self, make: Callable[[int], Any], length: int = 1_000_000, size: int = 64) -> None:
        self._make, self._length, self._size = make, length, size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        self._make(index)
        return torch.zeros(self._size)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(0.02)
            yield torch.zeros(64)


class SlowSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        for index in range(1_000_000):
            time.sleep(0.01)
            yield index


def asleep(seconds: float) -> Callable[[int], None]:
    return lambda _index: time.sleep(seconds)


def computing(seconds: float) -> Callable[[int], None]:
    return lambda _index: spin(seconds)


def skewed(index: int) -> None:
    time.sleep(0.4 if index % 16 == 0 else 0.004)


@dataclass
class Training:
    truth: str
    data: Callable[[], Any]
    workers: int = 2
    step: float = 0.001
    changed_step: float | None = None
    """From the change on."""
    change: Callable[[DataLoader[Any]], Any] | None = None
    """What happens after five seconds."""
    options: dict[str, Any] = field(default_factory=dict)
    foreign: int = 0
    """Other processes that compute all the time."""
    accelerator: bool = False
    """The test accelerator is there."""
    beside: Callable[[], Any] | None = None
    """Another loader, of which every batch of this one takes one, too."""
    validate: Callable[[], Any] | None = None
    """Another loader, over which training iterates every second, within the loop over this one."""


class SlowToPin:
    """A batch whose pinning takes long."""

    def __init__(self, samples: list[torch.Tensor]) -> None:
        self.samples = samples

    def pin_memory(self, device: str | None = None) -> SlowToPin:
        del device
        time.sleep(0.03)
        return self


_slow = multiprocessing.Value("d", 0.0)
_lock = multiprocessing.Lock()


def turned(_index: int) -> None:
    time.sleep(_slow.value)


def locked(_index: int) -> None:
    with _lock:
        time.sleep(0.01)


def slow_down(_loader: DataLoader[Any]) -> None:
    _slow.value = 0.05


def pause_for_a_second(loader: DataLoader[Any]) -> None:
    loader.pause()
    time.sleep(1.0)
    loader.resume()


TRAININGS: dict[str, Training] = {
    "sleep": Training("workers", lambda: Work(asleep(0.02))),
    "sleep, many workers": Training("workers", lambda: Work(asleep(0.16)), workers=8),
    "sleep, nearly enough": Training("workers", lambda: Work(asleep(0.025)), workers=4, step=0.005),
    "sleep, one worker": Training("workers", lambda: Work(asleep(0.02)), workers=1),
    "no workers": Training("workers", lambda: Work(asleep(0.01)), workers=0),
    "iterable": Training("workers", Stream, workers=2),
    "storage": Training("workers", lambda: Work(lambda _index: store(0.02))),
    "lock, after a resize": Training("shared", lambda: Work(locked), workers=2, change=lambda loader: loader.resize(6)),
    "processor, one worker": Training("workers", lambda: Work(computing(0.01)), workers=1),
    "processor": Training("processors", lambda: Work(computing(0.01)), workers=2),
    "full cores": Training("processors", lambda: Work(computing(0.01)), workers=8),
    "foreign load": Training("neighbours", lambda: Work(computing(0.01)), workers=2, foreign=2),
    "sampler": Training("sampler", lambda: Work(asleep(0.001)), options={"sampler": SlowSampler()}),
    "consumer": Training("training", lambda: Work(asleep(0.02)), workers=4, step=0.02),
    "consumer, cheap data": Training("training", lambda: Work(asleep(0.0)), workers=4, step=0.02),
    "skewed": Training("samples", lambda: Work(skewed), workers=4, step=0.01, options={"memory_budget": 4096}),
    "memory": Training("memory", lambda: Work(asleep(0.02), size=4096), workers=4, options={"memory_budget": 16384}),
    "short epochs": Training("startup", lambda: Work(asleep(0.001), length=20), workers=2, step=0.002),
    "short epochs, persistent": Training(
        "training",
        lambda: Work(asleep(0.001), length=40),
        workers=2,
        step=0.01,
        options={"persistent_workers": True},
    ),
    "after growing": Training(
        "training", lambda: Work(asleep(0.04)), workers=2, step=0.012, change=lambda loader: loader.resize(8)
    ),
    "after shrinking": Training(
        "workers", lambda: Work(asleep(0.04)), workers=8, step=0.012, change=lambda loader: loader.resize(2)
    ),
    "after a pause": Training("workers", lambda: Work(asleep(0.03)), workers=2, step=0.005, change=pause_for_a_second),
    "training gets slower": Training("training", lambda: Work(asleep(0.02)), workers=4, changed_step=0.02),
    "data gets slower": Training("workers", lambda: Work(turned), workers=2, step=0.01, change=slow_down),
    "lock": Training("shared", lambda: Work(locked), workers=4),
    "pin": Training(
        "pin",
        lambda: Work(asleep(0.002)),
        workers=2,
        options={"pin_memory": True, "collate_fn": SlowToPin},
        accelerator=True,
    ),
    "validation within": Training(
        "workers", lambda: Work(asleep(0.02)), validate=lambda: DataLoader(Work(asleep(0.01), length=60), monitor=None)
    ),
    "beside a slower loader": Training(
        "training",
        lambda: Work(asleep(0.002)),
        beside=lambda: DataLoader(Work(asleep(0.03)), num_workers=1, monitor=None),
    ),
}


def measure(variant: str, quick: bool, name: str) -> Measures:
    """Seconds after the last change until the limit is named for good, and the share of the time after 3 s it was."""
    del variant, quick
    training = TRAININGS[name]
    others = [multiprocessing.Process(target=spin, args=(3600.0,), daemon=True) for _ in range(training.foreign)]
    for other in others:
        other.start()
    try:
        said, changed = _train(training)
    finally:
        for other in others:
            other.kill()
            other.join()
    after = [(at - changed, limit) for at, limit in said if at >= changed]
    wrong = [at for at, limit in after if limit != training.truth]
    late = [limit == training.truth for at, limit in after if at >= LATE]
    return {"named_s": max(wrong, default=0.0), "right": sum(late) / max(1, len(late))}


def _train(training: Training) -> tuple[list[tuple[float, str]], float]:
    if training.accelerator:
        install()
    data = training.data()
    given: dict[str, Any] = {"batch_size": 1, "num_workers": training.workers, **training.options}
    loader: DataLoader[Any] = DataLoader(data, monitor=None, **given)
    said: list[tuple[float, str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            said.append((time.monotonic(), loader.stats().verdict.limit))

    watcher = threading.Thread(target=look)
    start = changed = validated = time.monotonic()
    calm = training.change is None and training.changed_step is None
    step, changes, end = training.step, 0 if calm else 1, start + SECONDS
    watcher.start()
    try:
        while time.monotonic() < end:
            for _ in _beside(loader, training):
                time.sleep(step)
                now = time.monotonic()
                if training.validate is not None and now - validated > 1.0:
                    for _ in training.validate():
                        time.sleep(step)
                    validated = now = time.monotonic()
                if changes and now - start > 5.0:
                    changes, step = 0, training.changed_step or step
                    if training.change is not None:
                        threading.Thread(target=training.change, args=(loader,)).start()
                    changed = now + (1.0 if training.change is pause_for_a_second else 0.0)
                    end = changed + SECONDS
                if now > end and not changes:
                    break
            if changes:
                end = time.monotonic() + SECONDS
    finally:
        over.set()
        watcher.join()
        loader.close()
    return [(at, limit) for at, limit in said if at < end], changed


def _beside(loader: DataLoader[Any], training: Training) -> Iterator[Any]:
    """Its batches; with another loader beside it, one of that with each of them."""
    if training.beside is None:
        yield from loader
    else:
        for batch, _ in zip(loader, training.beside(), strict=False):
            yield batch
