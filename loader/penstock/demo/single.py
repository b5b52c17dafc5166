"""A scenario in one training process."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from .. import DataLoader
from .accidents import Accidents
from .dataset import Sample, Shapes, ShapeStream
from .ending import Ending
from .machines import other_machines
from .progress import Pace, ProgressLine
from .scenarios import Scenario
from .training import Training, small_model


def train(scenario: Scenario, link: str, seconds: float | None, ending: Ending) -> None:
    """Train until it is to end, or for so many seconds."""
    with nullcontext("process") if scenario.local is None else other_machines(scenario.local) as workers:
        run_training(scenario, make_loader(scenario, link, workers), seconds, ending)


def run_training(scenario: Scenario, loader: DataLoader[Sample], seconds: float | None, ending: Ending) -> None:
    """The same with a loader that there is."""
    training = Training(small_model(), scenario.step)
    accidents = Accidents(loader, scenario.crash_every)
    pace, line = Pace(loader.stats), ProgressLine()
    end = float("inf") if seconds is None else time.monotonic() + seconds
    try:
        while True:
            for images, labels in loader:
                training.learn(images, labels)
                accidents.happen()
                pace.look()
                line.show(lambda: str(pace))
                if ending.asked or time.monotonic() > end:
                    return
    finally:
        line.end()
        if scenario.local is not None:
            loader.close()  # before the agents end


def make_loader(scenario: Scenario, link: str | bool | None, workers: Any = "process") -> DataLoader[Sample]:
    shapes = Shapes(
        scenario.samples,
        scenario.side,
        scenario.wait,
        scenario.slow_share,
        scenario.slow_wait,
        scenario.compute,
    )
    return DataLoader(
        ShapeStream(shapes) if scenario.stream else shapes,
        scenario.batch_size,
        shuffle=None if scenario.stream else True,
        num_workers=scenario.workers,
        persistent_workers=True,
        drop_last=True,
        pin_memory=scenario.pin_memory,
        memory_budget=scenario.memory_budget,
        record_samples=5,
        workers=workers,
        name="train",
        monitor=link,
    )
