"""Runs a tuner in the simulated world, and fixed numbers of workers for comparison."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from penstock.insight import offer
from penstock.insight.load import summarize
from penstock.tuning.tuner import Step, Tuner

from .loads import LOADS, Load
from .world import Rank, World

LOOK = 0.25
"""Seconds between two readings."""
SETTLING = (30.0, 300)
"""Seconds and batches after which, whichever is later, the tuner is held to its figures."""


@dataclass
class Course:
    """What happened to one loader."""

    at: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    steps: list[tuple[float, Step]] = field(default_factory=list)

    def rate(self, since: float, until: float) -> float:
        """Batches a second in a stretch of time."""
        first = next(n for n, at in enumerate(self.at) if at >= since)
        last = max(n for n, at in enumerate(self.at) if at <= until)
        return (self.batches[last] - self.batches[first]) / (self.at[last] - self.at[first])

    def settled_at(self, since: float = 0.0) -> float:
        """The moment from which on it is held to its figures."""
        first = next(n for n, at in enumerate(self.at) if at >= since)
        for at, batches in zip(self.at[first:], self.batches[first:], strict=True):
            if at - since >= SETTLING[0] and batches - self.batches[first] >= SETTLING[1]:
                return at
        raise AssertionError("it was too short")

    def changes(self, since: float, until: float) -> int:
        return sum(since <= at <= until and step.workers != step.before for at, step in self.steps)


def tuned(load: Load, until: float, seed: int = 0) -> Course:
    """Simulate a loader with a tuner."""
    world = load.world(load.start, seed)
    rank, course = world.ranks[0], Course()
    tuner = Tuner(load.start, load.most, seed=functools.partial(by_replay, world, rank, load.most))
    while world.now < until:
        world.run(world.now + LOOK)
        world.glance(rank)
        step = tuner.observe(world.reading(rank))
        if step is not None:
            course.steps.append((world.now, step))
            if step.workers != rank.target:
                world.resize(rank, step.workers)
        note(course, world)
    return course


def by_replay(world: World, rank: Rank, most: int, since: float) -> tuple[int, float] | None:
    """What replay would choose, as the thread that tunes a loader asks it."""
    cpu = world.stations.get("cpu")
    recorded = summarize(
        rank.recording.since(since),
        at=world.now,
        workers=rank.target,
        allowed=0.0 if cpu is None else cpu.places,
        others=0.0 if cpu is None else cpu.foreign,
        training=0.0,
        prefetch_factor=rank.depth,
    )
    found = offer.best(recorded, most)
    return None if found is None else (found.workers, found.batches)


def note(course: Course, world: World, rank: int = 0) -> None:
    course.at.append(world.now)
    course.batches.append(world.ranks[rank].batches)
    course.workers.append(world.ranks[rank].target)


@functools.cache
def fixed(name: str, workers: int, until: float, seed: int = 0) -> Course:
    """Simulate a loader with a fixed number of workers."""
    world, course = LOADS[name].world(workers, seed), Course()
    while world.now < until:
        world.run(world.now + LOOK)
        note(course, world)
    return course


def numbers(most: int) -> list[int]:
    """Numbers of workers that are worth a comparison: all small ones, then ever fewer."""
    found, number = [], 1
    while number <= most:
        found.append(number)
        number = max(number + 1, round(number * 1.09))
    return found
