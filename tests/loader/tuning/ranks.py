"""Ranks of one host that train in step, each with a tuner, in the simulated world."""

from __future__ import annotations

from pathlib import Path

from penstock.tuning.lease import Host
from penstock.tuning.tuner import Step, Tuner
from penstock.tuning.turns import Turns

from .loads import constant, varied
from .trial import LOOK, Course, note
from .world import Rank, Station, World

PROCESSORS = 2.0
COSTS = (0.03, 0.01, 0.01, 0.01)
"""Processor seconds that a batch takes, by rank: one has data that is three times as slow."""


def world_of(workers: tuple[int, ...], costs: tuple[float, ...] = COSTS, apart: bool = False) -> World:
    """Ranks with so many workers each, on shared processors, or each on its own share of them."""
    names = [f"cpu{number}" if apart else "cpu" for number in range(len(costs))]
    ranks = [
        Rank(count, varied((name, cost), ("sleep", 0.01)), constant(0.002), seed)
        for seed, (count, cost, name) in enumerate(zip(workers, costs, names, strict=True))
    ]
    share = PROCESSORS / len(costs) if apart else PROCESSORS
    return World(ranks, {name: Station(share, crowding=0.01) for name in names}, in_step=True)


def fixed(workers: tuple[int, ...], until: float, apart: bool = False) -> Course:
    world, course = world_of(workers, apart=apart), Course()
    while world.now < until:
        world.run(world.now + LOOK)
        note(course, world)
    return course


def tuned(folder: Path, until: float, start: int = 1) -> tuple[Course, list[tuple[float, int, Step]]]:
    """With a tuner for each rank that shares the host; the steps say which rank took them."""
    world, course = world_of((start,) * len(COSTS)), Course()
    host, steps = Host(folder), []
    all_turns = [Turns(Tuner(start, 16), host.join()) for _ in world.ranks]
    while world.now < until:
        world.run(world.now + LOOK)
        for number, (rank, turns) in enumerate(zip(world.ranks, all_turns, strict=True)):
            reading = world.reading(rank, turns.others_use())
            step = turns.observe(reading, 0.0)
            if step is not None:
                steps.append((world.now, number, step))
                if step.workers != rank.target:
                    world.resize(rank, step.workers)
        note(course, world)
    for turns in all_turns:
        turns.leave()
    return course, steps
