"""The offer in a verdict: the number of workers that replay would choose, and what it would bring. Pure.

It is the fewest that bring nearly all that any number would. Where what it brings is hardly more than what there is, or
the interval reaches down to that, nothing is promised.

A verdict by itself only estimates how many workers would do. Once replay can tell, its number is the only one that is
named: in the words, on the button, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from ..protocol import MAX_WORKERS, Config, Limit, Load, Prediction, Verdict
from .replay import Replay, predict_range, why_not, worth_asking
from .shares import HARMLESS
from .verdict import SLOW_SAMPLES
from .words import count, figure

NEARLY = 0.97
"""Share of the most that is as good as the most."""
WORTH = 1.1
"""How many times as much as now an offer must bring."""
FAR = (0.25, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Numbers that are asked of replay when any would do, as multiples of what there is."""
CLOSER, CLOSE = 4, 0.1
"""How often it is looked between two numbers, until they are closer than that share."""
OPEN: tuple[Limit, ...] = ("workers", "samples")
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

    @property
    def asked(self) -> bool:
        """Whether replay was asked at all."""
        return self._of is not None

    def add(self, verdict: Verdict, load: Load | None, config: Config) -> Verdict:
        """The same verdict; where another number of workers may be what it takes, with what replay says of that."""
        if not _is_open(verdict) or load is None or why_not(load):
            return verdict
        most = _most(config)
        if self._of is None or self._of[0] is not load or self._of[1] != most:
            self._of, self._found = (load, most), _better(load, most)
        return _without(verdict) if self._found is None else _with(verdict, *self._found, config.local)

    def brief(self, verdict: Verdict, load: Load | None, config: Config) -> Verdict:
        """The same for those who look at many loaders, for whom nothing is worked out: what is known of this one, and
        where replay was not asked yet, no number."""
        if not _is_open(verdict) or load is None or why_not(load):
            return verdict
        if self._of is not None and self._of[0].workers == load.workers and self._of[1] == _most(config):
            return _without(verdict) if self._found is None else _with(verdict, *self._found, config.local)
        return verdict if verdict.workers is None else replace(verdict, advice="More workers would help.", workers=None)


def _is_open(verdict: Verdict) -> bool:
    """Whether another number of workers may lift what limits."""
    return verdict.limit in OPEN and verdict.tone in ("warn", "bad")


def _most(config: Config) -> int:
    return min(config.max_workers or MAX_WORKERS, MAX_WORKERS)


def _better(load: Load, most: int) -> tuple[Prediction, Prediction] | None:
    """What there is now, and what is worth a change; None: nothing is."""
    predictions = predict_range(load, sorted({load.workers, *worth_asking(load.workers, most)}))
    now = next(each for each in predictions if each.workers == load.workers)
    found = fewest(predictions)
    if found is None or found.workers == now.workers or found.batches < WORTH * now.batches:
        return None
    return (now, found) if math.isfinite(found.batches) and found.batches > 0 else None


def _with(verdict: Verdict, now: Prediction, found: Prediction, local: int | None) -> Verdict:
    said = "about" if found.low >= now.batches else "up to"
    before, after = figure(now.batches), f"{said} {figure(found.batches)}"
    workers = count(found.workers)
    if found.workers < now.workers:
        words = f"Fewer workers would do better: {workers} would make {after} batches/s instead of {before}."
    elif found.waiting < HARMLESS:
        words = f"{workers} workers would keep up: {after} batches/s instead of {before}."
    else:
        words = f"More workers would help: {workers} would make {after} batches/s instead of {before}."
    if local is not None and found.workers > max(now.workers, local):
        words += " Those that are added run on other machines."
    return replace(
        verdict,
        advice=_advice(verdict, words),
        workers=found.workers,
        offer=f"Apply {workers}: {before} → {after} batches/s",
        brings=found.batches,
        brings_low=found.low,
        brings_high=found.high,
    )


def _without(verdict: Verdict) -> Verdict:
    """Replay knows of no number that would bring much more: none is named."""
    if verdict.workers is None:
        return verdict
    words = "No other number of workers would bring much more; make samples cheaper."
    return replace(verdict, advice=_advice(verdict, words), workers=None)


def _advice(verdict: Verdict, words: str) -> str:
    return f"{SLOW_SAMPLES} {words}" if verdict.limit == "samples" else words
