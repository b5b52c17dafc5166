"""The loads that the tuner is tried with, by name. Each has a best number of workers for a reason of its own."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .world import Rank, Stages, Station, World


def constant(seconds: float) -> Callable[[float], float]:
    return lambda _now: seconds


def varied(*stages: tuple[str, float], spread: float = 0.15) -> Callable[[float, random.Random], Stages]:
    """Batches that take these times, more or less."""

    def make(_now: float, chance: random.Random) -> Stages:
        return [(name, seconds * chance.lognormvariate(-(spread**2) / 2, spread)) for name, seconds in stages]

    return make


def with_tail(_now: float, chance: random.Random) -> Stages:
    """One batch of a hundred takes twenty times as long."""
    return [("sleep", 0.06 * chance.lognormvariate(0, 0.15) * (20 if chance.random() < 0.01 else 1))]


def at_once(_now: float) -> float:
    return 0.002


def after(moment: float, early: float, late: float) -> Callable[[float], float]:
    return lambda now: early if now < moment else late


@dataclass
class Load:
    """A training to be tuned."""

    stages: Callable[[float, random.Random], Stages]
    gap: Callable[[float], float]
    start: int = 2
    """Workers at the start."""
    most: int = 64
    stations: Callable[[], dict[str, Station]] = dict
    depth: int = 2
    change: float | None = None
    """Seconds after which it becomes another one."""
    events: list[tuple[float, Callable[[World], None]]] = field(default_factory=list)
    """What happens when."""

    def world(self, workers: int, seed: int = 0) -> World:
        world = World([Rank(workers, self.stages, self.gap, seed, self.depth)], self.stations())
        for moment, event in self.events:
            world.at(moment, functools.partial(event, world))
        return world


def two_processors() -> dict[str, Station]:
    return {"cpu": Station(2, crowding=0.01)}


def _foreign(hogs: float) -> Callable[[World], None]:
    def begin(world: World) -> None:
        station = world.stations["cpu"]
        station.advance(world.now)
        station.foreign = hogs

    return begin


def _changing(now: float, chance: random.Random) -> Stages:
    return [("sleep", (0.1 if now < 150 else 0.3) * chance.lognormvariate(0, 0.15))]


LOADS = {
    "sleep-bound": Load(varied(("sleep", 0.5)), constant(0.0125)),
    "processor-bound": Load(varied(("cpu", 0.04)), at_once, start=1, stations=two_processors),
    "too many": Load(varied(("cpu", 0.04)), at_once, start=16, stations=two_processors),
    "lock-bound": Load(
        varied(("sleep", 0.02), ("lock", 0.02)), at_once, start=8, stations=lambda: {"lock": Station(1, crowding=0.002)}
    ),
    "heavy tail": Load(with_tail, constant(0.008), depth=4),
    "storage": Load(varied(("disk", 0.2)), at_once, stations=lambda: {"disk": Station(12, crowding=0.01)}),
    "phase change": Load(_changing, constant(0.012), change=150.0),
    "foreign load": Load(
        varied(("cpu", 0.015), ("sleep", 0.05)),
        constant(0.016),
        stations=two_processors,
        change=150.0,
        events=[(150.0, _foreign(4.0))],
    ),
    "best already": Load(varied(("sleep", 0.1)), constant(0.02), start=6),
    "no difference": Load(varied(("sleep", 0.004), ("lock", 0.02)), at_once, stations=lambda: {"lock": Station(1)}),
}
"""sleep-bound: the best number is far above the cores. lock-bound, storage: more workers than some bring nothing, or
harm. foreign load: others take most of the processors from some moment on. no difference: every number from two on is
as good (A/A)."""
