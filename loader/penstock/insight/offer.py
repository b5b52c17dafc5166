"""The offer in a verdict: the number of workers that replay would choose, and what it would bring. Pure.

It is the fewest that bring nearly all that any number would. Where what it brings is hardly more than what there is, or
the interval reaches down to that, nothing is promised, and the verdict stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from ..protocol import MAX_WORKERS, Config, Limit, Load, Prediction, Verdict
from .replay import Replay, predict_range, why_not, worth_asking
from .words import figure

NEARLY = 0.97
"""Share of the most that is as good as the most."""
WORTH = 1.1
"""How many times as much as now an offer must bring."""
FAR = (0.25, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Numbers that are asked of replay when any would do, as multiples of what there is."""
CLOSER, CLOSE = 4, 0.1
"""How often it is looked between two numbers, until they are closer than that share."""
_OPEN: tuple[Limit, ...] = ("workers", "samples")
"""Limits that another number of workers may lift."""


def best(load: Load, most: int) -> Prediction | None:
    """The fewest workers that bring nearly all that any number would: far away first, then closer to it."""
    if why_not(load):
        return None
    replay, numbers = Replay(load), {max(load.workers, 1)}
    for factor in FAR:
        numbers.add(min(max(round(load.workers * factor), 1), most))
    known = {number: replay.predict(number) for number in sorted(numbers)}
    for _ in range(CLOSER):
        found = fewest(known.values())
        below = max((number for number in known if found is not None and number < found.workers), default=None)
        if found is None or below is None or found.workers - below <= max(1.0, CLOSE * found.workers):
            break
        middle = (below + found.workers) // 2
        known[middle] = replay.predict(middle)
    return fewest(known.values())


def fewest(predictions: Iterable[Prediction]) -> Prediction | None:
    """Of these the one with the fewest workers that bring nearly the most."""
    known = sorted((each for each in predictions if each.enough), key=lambda each: each.workers)
    peak = max((each.batches for each in known), default=0.0)
    return next((each for each in known if each.batches >= NEARLY * peak), None)


class Offers:
    """What replay would choose for one loader: once for what it recorded, however often the verdict is told."""

    def __init__(self) -> None:
        self._of: tuple[Load, int] | None = None
        self._found: tuple[Prediction, Prediction] | None = None

    def add(self, verdict: Verdict, load: Load | None, config: Config) -> Verdict:
        """The same verdict, with what replay offers where more workers are what it takes."""
        if verdict.limit not in _OPEN or verdict.tone not in ("warn", "bad") or load is None or why_not(load):
            return verdict
        most = min(config.max_workers or MAX_WORKERS, MAX_WORKERS)
        if self._of is None or self._of[0] is not load or self._of[1] != most:
            self._of, self._found = (load, most), _better(load, most)
        return verdict if self._found is None else _with(verdict, *self._found)


def _better(load: Load, most: int) -> tuple[Prediction, Prediction] | None:
    """What there is now, and what is worth a change; None: nothing is."""
    predictions = predict_range(load, sorted({load.workers, *worth_asking(load.workers, most)}))
    now = next(each for each in predictions if each.workers == load.workers)
    found = fewest(predictions)
    if found is None or found.workers == now.workers or found.batches < WORTH * now.batches:
        return None
    return (now, found) if math.isfinite(found.batches) and found.batches > 0 else None


def _with(verdict: Verdict, now: Prediction, found: Prediction) -> Verdict:
    said = "about" if found.low >= now.batches else "up to"
    offer = f"Apply {found.workers}: {figure(now.batches)} → {said} {figure(found.batches)} batches/s"
    return replace(
        verdict, workers=found.workers, offer=offer, brings=found.batches, brings_low=found.low, brings_high=found.high
    )
