"""A recording in brief: all that replay needs to know of a loader, in 2 KB. Pure.

Batches are sorted by their time and put together in groups of as many; each group stands with its means. So sums are
kept, to within a few per cent, and the slow few among many stay what they are.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from ..protocol import Load
from .capacity import capacity
from .channels import company, find_channels
from .eras import Era, eras
from .recording import Made, Recording, Turn

GROUPS = 96
"""Groups of batches."""
TURNS = 32
"""Groups of training's turns."""
LOOKED_AT = 1024
"""Batches among which a limit of what workers wait for is looked for: the oldest and the newest halves of so many."""
ALIKE = 0.2
"""Share of blocked time up to which it does not matter that storage or network might have a limit."""
EVEN = 0.1
"""Difference between long and short blocked times of batches, by the usual one, below which they take evenly long."""
MEASURED = 16
"""Numbers of workers of which it is told what they brought."""
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
    local: int | None = None,
    elsewhere: float = 0.0,
    carried: float = 0.0,
) -> Load:
    """`training`: processor time of the training process per batch, s. `ordinary`: what a sample takes, and from which
    time on it is among the slowest 1 %, s. `carried`: bytes a second that the network took when it took no more.
    """
    made, turns = list(recording.made), list(recording.turns)
    seen = eras(list(recording.glances))
    unsure = _unsure(seen)
    together = company(made) if made else []
    channels = math.inf
    if made and unsure > ALIKE and sum(each.wall for each in made) / len(made) >= TIMED:
        half = LOOKED_AT // 2
        chosen = range(len(made)) if len(made) <= LOOKED_AT else [*range(half), *range(len(made) - half, len(made))]
        channels = find_channels([made[place] for place in chosen], [together[place] for place in chosen])
    rows = [
        (own * min(1.0, channels / max(others_there, 1.0)), *_needs(each, ordinary))
        for each, own, others_there in zip(made, _without_locks(made, seen), together, strict=True)
    ]
    most, crowded = capacity(seen)
    each = sum(map(attrgetter("nbytes"), made)) / len(made) if made else 0.0
    return Load(
        at=at,
        workers=workers,
        seen=len(made),
        rows=[(_us(b), _us(p), _us(s)) for b, p, s in _grouped(rows, GROUPS)],
        turns=[_us(own) for (own,) in _grouped([(turn.own,) for turn in turns], TURNS)],
        inside_us=_us(_quick(turns)),
        channels=0.0 if channels == math.inf else channels,
        company=max(together, default=0.0),
        most=most,
        crowded=crowded,
        even=_even(made),
        unsure=unsure,
        measured=_measured(seen),
        allowed=allowed,
        others=others,
        width=max(_width(made), 1.0),
        training_us=_us(training),
        batch_bytes=int(each),
        largest=max(map(attrgetter("nbytes"), made), default=0),
        prefetch_factor=prefetch_factor,
        memory_budget=memory_budget,
        memory_ceiling=memory_ceiling,
        in_order=in_order,
        sharded=sharded,
        local=local,
        elsewhere=elsewhere,
        carried=carried / each if each else 0.0,
    )


def _unsure(seen: Sequence[Era]) -> float:
    """Share of blocked time, but for locks, of which it is not known whether it is longer beside more workers."""
    told = [era for era in seen if era.told]
    asleep, other = sum(era.asleep for era in told), sum(era.other for era in told)
    return other / (asleep + other) if asleep + other else 0.0 if told else 1.0


def _even(made: Sequence[Made]) -> bool:
    """Whether nearly all batches are blocked for the same time, and for most of theirs."""
    blocked = sorted(each.blocked for each in made)
    if not blocked or sum(blocked) < 0.5 * sum(each.wall for each in made):
        return False
    short, usual, long = (blocked[int(share * (len(blocked) - 1))] for share in (0.1, 0.5, 0.9))
    return long - short < EVEN * usual


def _without_locks(made: Sequence[Made], seen: Sequence[Era]) -> list[float]:
    """Blocked time of each batch without the wait for locks, as far as is known."""
    told = [era for era in seen if era.told]
    if not told:
        return [each.blocked for each in made]
    begins = [era.began for era in told]
    shares = [1.0 - era.waiting_for_locks for era in told]
    return [each.blocked * shares[max(bisect(begins, each.began + each.wall / 2) - 1, 0)] for each in made]


def _measured(seen: Sequence[Era]) -> list[tuple[int, float, float]]:
    """Of each number of workers what it brought last; the newest last."""
    brought: dict[int, tuple[int, float, float]] = {}
    for era in seen:
        if era.enough:
            brought.pop(era.workers, None)
            brought[era.workers] = era.workers, era.batches, era.error
    return list(brought.values())[-MEASURED:]


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
