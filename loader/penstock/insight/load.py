"""A recording in brief: all that replay needs to know of a loader, in 2 KB. Pure.

Batches are sorted by their time and put together in groups of as many; each group stands with its means. So sums are
kept, to within a few per cent, and the slow few among many stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from ..protocol import Load
from .channels import company, find_channels
from .recording import Made, Recording, Turn

GROUPS = 96
"""Groups of batches."""
TURNS = 32
"""Groups of training's turns."""
LOOKED_AT = 1024
"""Batches among which a limit of what workers wait for is looked for: the oldest and the newest halves of so many."""
UNWAITED = 0.0001
"""s: about what `next()` takes."""
TIMED = 0.008
"""s: where batches are shorter than that, not all are measured (`effort`), and nobody knows who was beside whom."""


def summarize(
    recording: Recording,
    *,
    at: float,
    workers: int,
    allowed: float,
    others: float,
    training: float,
    ordinary: tuple[float, float] = (0.0, 0.0),
    prefetch_factor: int = 0,
    memory_budget: int = 0,
    memory_ceiling: int = 0,
    in_order: bool = True,
    sharded: bool = False,
) -> Load:
    """`training`: processor time of the training process per batch, s. `ordinary`: what a sample takes, and from which
    time on it is among the slowest 1 %, s.
    """
    made, turns = list(recording.made), list(recording.turns)
    together = company(made) if made else []
    channels = math.inf
    if made and sum(each.wall for each in made) / len(made) >= TIMED:
        half = LOOKED_AT // 2
        chosen = range(len(made)) if len(made) <= LOOKED_AT else [*range(half), *range(len(made) - half, len(made))]
        channels = find_channels([made[place] for place in chosen], [together[place] for place in chosen])
    rows = [
        (blocked * min(1.0, channels / max(others_there, 1.0)), processor, saved)
        for (blocked, processor, saved), others_there in zip(
            [(each.blocked, *_needs(each, ordinary)) for each in made], together, strict=True
        )
    ]
    return Load(
        at=at,
        workers=workers,
        seen=len(made),
        rows=[(_us(b), _us(p), _us(s)) for b, p, s in _grouped(rows, GROUPS)],
        turns=[_us(own) for (own,) in _grouped([(turn.own,) for turn in turns], TURNS)],
        inside_us=_us(_quick(turns)),
        channels=0.0 if channels == math.inf else channels,
        company=max(together, default=0.0),
        allowed=allowed,
        others=others,
        width=max(_width(made), 1.0),
        training_us=_us(training),
        batch_bytes=int(sum(map(attrgetter("nbytes"), made)) / len(made)) if made else 0,
        largest=max(map(attrgetter("nbytes"), made), default=0),
        prefetch_factor=prefetch_factor,
        memory_budget=memory_budget,
        memory_ceiling=memory_ceiling,
        in_order=in_order,
        sharded=sharded,
    )


def _needs(each: Made, ordinary: tuple[float, float]) -> tuple[float, float]:
    """Processor time, and what would be saved if its slowest sample were ordinary."""
    usual, slow = ordinary
    saved = each.slowest - usual if slow and each.slowest >= slow > usual else 0.0
    return min(each.processor, max(each.wall - each.queued, 0.0)), max(saved, 0.0)


def _width(made: Sequence[Made]) -> float:
    """Processors that a batch uses at a time: more than one if the dataset has threads."""
    wanted = sum(each.processor for each in made)
    had = sum(min(each.processor, max(each.wall - each.queued, 0.0)) for each in made)
    return wanted / had if had > 0 else 1.0


def _quick(turns: Sequence[Turn]) -> float:
    """What `next()` takes when nothing is waited for, s; a guess where it always waits."""
    inside = sorted(turn.inside for turn in turns)
    quick = inside[len(inside) // 10] if inside else UNWAITED
    return quick if quick < 10 * UNWAITED else UNWAITED


def _grouped(rows: Sequence[tuple[float, ...]], groups: int) -> list[tuple[float, ...]]:
    ordered = sorted(rows, key=sum)
    count = min(groups, len(ordered))
    bounds = [len(ordered) * place // count for place in range(count + 1)] if count else [0]
    return [
        tuple(sum(column) / (end - start) for column in zip(*ordered[start:end], strict=True))
        for start, end in pairwise(bounds)
    ]


def _us(seconds: float) -> int:
    return max(int(seconds * 1e6 + 0.5), 0)
