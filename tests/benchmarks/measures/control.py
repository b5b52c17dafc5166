"""How soon pause and resize take effect, and what they do to the batches that come meanwhile.

Effects are seen in the samples, which say who loaded them and when, not in what the loader reports.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from penstock import DataLoader
from penstock.control import Outcome

from tests.benchmarks.case import Measures
from tests.benchmarks.workloads import Timed, TimedAmongObjects


class Loaded(NamedTuple):
    """One batch of one sample."""

    number: int
    process: int
    start: float
    end: float
    came: float
    """When training got it."""


def open_loader(dataset: Timed, workers: int) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=1,
        num_workers=workers,
        multiprocessing_context="fork",
        monitor=False,
        max_workers=16,
    )


def stream(loader: DataLoader[Any]) -> Iterator[Loaded]:
    for number, (index, process, start, end) in enumerate(loader):
        if index.item() != number:
            raise RuntimeError(f"batch {number} has sample {index.item()}")
        yield Loaded(number, int(process.item()), start.item(), end.item(), time.monotonic())


def take_until(batches: Iterator[Loaded], moment: float) -> list[Loaded]:
    taken = []
    while time.monotonic() < moment:
        taken.append(next(batches))
    return taken


def compute_in_python(seconds: float) -> None:
    """Holds the GIL, but for the switches that the interpreter itself makes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def compute_in_torch(seconds: float) -> None:
    """Lets the GIL go for about half a second at a time."""
    end = time.monotonic() + seconds
    square = torch.ones(2500, 2500)
    while time.monotonic() < end:
        torch.mm(square, square)


class Call:
    """A call made after a delay in a thread, as a dashboard would make it, and how long it took."""

    def __init__(self, delay: float, function: Callable[[], object]) -> None:
        self.began = self.ended = 0.0
        self.error: BaseException | None = None
        self.result: object = None
        self._delay, self._function = delay, function
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        time.sleep(self._delay)
        self.began = time.monotonic()
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
        self.ended = time.monotonic()

    def finish(self) -> Call:
        self._thread.join()
        if self.error:
            raise self.error
        if isinstance(self.result, Outcome) and self.result.state != "applied":
            raise RuntimeError(f"not applied after {self.milliseconds:.0f} ms: {self.result}")
        return self

    @property
    def milliseconds(self) -> float:
        return (self.ended - self.began) * 1000


def measure_busy(variant: str, quick: bool) -> Measures:
    """How long pause and resize take while the training thread computes."""
    del variant
    seconds = 0.7 if quick else 1.5
    found: dict[str, float] = {}
    for kind, compute in (("python", compute_in_python), ("matmul", compute_in_torch)):
        dataset = Timed(1_000_000, 0.005)
        loader = open_loader(dataset, workers=2)
        batches = stream(loader)
        take_until(batches, time.monotonic() + 0.3)
        pause = Call(0.2, loader.pause)
        compute(seconds)
        found[f"pause_{kind}_ms"] = pause.finish().milliseconds
        resumed = time.monotonic()
        loader.resume()
        require_pause(take_until(batches, resumed + 0.5), pause.ended + 2 * dataset.seconds, resumed)
        resize = Call(0.2, lambda loader=loader: loader.resize(4))  # type: ignore[misc]
        compute(seconds)
        found[f"resize_{kind}_ms"] = resize.finish().milliseconds
        require_workers(take_until(batches, time.monotonic() + 0.5), 4)
        loader.close()
    return found


def require_pause(batches: list[Loaded], start: float, end: float) -> None:
    early = [batch for batch in batches if start < batch.start < end]
    if early:
        raise RuntimeError(f"{len(early)} samples were begun while the pool was said to be paused")


def require_workers(batches: list[Loaded], workers: int) -> None:
    seen = {batch.process for batch in batches[-4 * workers :]}
    if len(seen) != workers:
        raise RuntimeError(f"{len(seen)} workers produce after a resize to {workers}")


def measure_growth(variant: str, quick: bool) -> Measures:
    """From resize(8) until eight workers have each produced a batch."""
    del variant, quick
    loader = open_loader(TimedAmongObjects(1_000_000, 0.01), workers=2)
    batches = stream(loader)
    take_until(batches, time.monotonic() + 0.5)
    grow = Call(0.2, lambda: loader.resize(8))
    taken = take_until(batches, time.monotonic() + 2.0)
    grow.finish()
    first_ends: dict[int, float] = {}
    for batch in taken:
        first_ends.setdefault(batch.process, batch.end)
    if len(first_ends) != 8:
        raise RuntimeError(f"{len(first_ends)} workers produced after a resize to 8")
    loader.close()
    return {"producing_ms": (max(first_ends.values()) - grow.began) * 1000, "call_ms": grow.milliseconds}


def measure_delay(variant: str, quick: bool) -> Measures:
    """By how much a resize lengthens the longest wait for a batch, in batch times.

    Workers that happen to be in step finish together and then make training wait for one batch time, however
    many they are: only what goes beyond that is the resize's doing.
    """
    del variant
    batch_time, step = 0.04, 0.4
    sizes = (8, 2, 6, 2) if quick else (8, 2, 6, 3, 12, 2, 4, 2)
    loader = open_loader(Timed(1_000_000, batch_time), workers=2)
    batches = stream(loader)
    take_until(batches, time.monotonic() + 0.5)
    undisturbed = longest_wait(take_until(batches, time.monotonic() + step * len(sizes)))

    def resize_all() -> None:
        for size in sizes:
            loader.resize(size)
            time.sleep(step)

    resizes = Call(0.0, resize_all)
    disturbed = longest_wait(take_until(batches, time.monotonic() + step * len(sizes) + 0.2))
    resizes.finish()
    loader.close()
    return {
        "delay_batches": max(0.0, disturbed / batch_time - 1),
        "undisturbed_delay_batches": max(0.0, undisturbed / batch_time - 1),
    }


def longest_wait(batches: list[Loaded]) -> float:
    return max(later.came - earlier.came for earlier, later in pairwise(batches))
