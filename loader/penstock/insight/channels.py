"""How many workers may be blocked at once before they are in each other's way. Pure.

A worker that is blocked waits for storage, a lock, the network, a sleep. Nothing in one batch says whether others wait
for the same thing. But the number of workers at batches is not always the same (workers come one after the other, an
epoch drains, somebody resizes), and where the blocked time of a batch grows with it, there is a limit: with `channels`
of them, more than that many wait in turn. It is looked for among the numbers that there were; where they do not differ,
or blocked time does not grow with them, none is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from .recording import Made

LEAST = 3
"""Batches made in the company of so many others from which something is concluded."""
CLEAR = 0.12
"""How much smaller differences between such groups must become, as logarithms, for a limit to be believed."""


def company(made: Sequence[Made]) -> list[float]:
    """For each batch, how many were blocked at once while it was made, itself included, on average."""
    edges: list[tuple[float, float]] = []
    for each in made:
        if each.wall > 0:
            share = each.blocked / each.wall
            edges += ((each.began, share), (each.began + each.wall, -share))
    edges.sort()
    moments, areas = [-math.inf], [0.0]
    level = area = 0.0
    last = edges[0][0] if edges else 0.0
    for moment, change in edges:
        area += level * (moment - last)
        level, last = level + change, moment
        moments.append(moment)
        areas.append(area)
    levels = dict(zip(moments, areas, strict=True))
    return [
        (levels[each.began + each.wall] - levels[each.began]) / each.wall if each.wall > 0 else 0.0 for each in made
    ]


def find_channels(made: Sequence[Made], together: Sequence[float]) -> float:
    """The limit; infinity: none is known. `together` is what `company` says."""
    groups: dict[int, list[tuple[float, float]]] = {}
    for each, others in zip(made, together, strict=True):
        if each.blocked > 0 and others > 0:
            groups.setdefault(round(others), []).append((each.blocked, max(others, 1.0)))
    known = [group for group in groups.values() if len(group) >= LEAST]
    if len(known) < 2:
        return math.inf
    most = max(others for group in known for _, others in group)
    without = _differences(known, math.inf)
    best, found = without, math.inf
    candidate = 1.0
    while candidate < most:
        differences = _differences(known, candidate)
        if differences < best:
            best, found = differences, candidate
        candidate *= 1.1
    return found if without - best > CLEAR and best < 0.6 * without else math.inf


def _differences(groups: Sequence[Sequence[tuple[float, float]]], channels: float) -> float:
    """How far apart groups are, on average, once the wait for each other is taken out; as logarithms."""
    middles = [math.log(median(blocked * min(1.0, channels / others) for blocked, others in group)) for group in groups]
    centre = median(middles)
    return sum(abs(middle - centre) for middle in middles) / len(middles)
