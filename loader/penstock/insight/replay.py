"""Replay: what another number of workers would bring, from what was recorded. Pure, and under 100 ms for a range.

The simulation is run with the recorded batches in several orders, for the middle, and with batches drawn from them, for
how much chance is in them. On top of that a model is only a model: predictions far from where we are, and of more
workers blocked at once than were ever seen, are less sure, and the interval says so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from ..protocol import Load, Prediction
from .simulation import Outcome, Pool, Work, simulate

LEAST = 24
"""Batches that must have been measured."""
LEAST_TURNS = 12
"""Batches that training must have had."""
ORDERS, DRAWS = 3, 5
BATCHES = 256
MOST_BATCHES = 600
MODEL, MODEL_FURTHER, UNSEEN = 0.025, 0.02, 0.05
"""Relative errors (standard deviations): in any case; for every doubling away from now; the same for every doubling of
the workers that are blocked at once beyond what was seen, which only makes it less."""
FASTEST = 1e6
"""Batches a second; of batches and a training that take no time at all."""
Z = 1.645
"""Of a normal distribution nine tenths are within so many standard deviations."""


def why_not(load: Load | None) -> str:
    """Why nothing can be predicted; empty: it can."""
    if load is None:
        return "not enough seen: no batch was measured yet"
    if load.seen < max(LEAST, 2 * load.workers) or not load.rows:
        return f"not enough seen: {load.seen} batches of {max(LEAST, 2 * load.workers)}"
    if len(load.turns) < LEAST_TURNS:
        return f"not enough seen: training had {len(load.turns)} batches of {LEAST_TURNS}"
    return ""


def predict(
    load: Load | None, workers: int, *, memory_budget: int | None = None, ordinary_samples: bool = False
) -> Prediction:
    """What so many workers would bring.

    `memory_budget`: as it would be with so many bytes of finished batches. `ordinary_samples`: as if the slowest 1 % of
    samples took no longer than others.
    """
    reason = why_not(load)
    if load is None or reason:
        return Prediction(workers, enough=False, reason=reason)
    chance = random.Random(workers)  # the same question has the same answer
    pool, training = _pool(load, workers, memory_budget), _training(load)
    work = [
        Work(max(blocked - (saved if ordinary_samples else 0), 0) / 1e6, processor / 1e6)
        for blocked, processor, saved in load.rows
    ]
    if ordinary_samples:  # what is saved is blocked time first, then processor time
        work = [
            Work(w.blocked, max(w.processor - max(s - b, 0) / 1e6, 0.0))
            for w, (b, _, s) in zip(work, load.rows, strict=True)
        ]
    middle = [simulate(pool, _shuffled(work, chance), training, _length(work, workers)) for _ in range(ORDERS)]
    drawn = [simulate(pool, chance.choices(work, k=len(work)), training, _length(work, workers)) for _ in range(DRAWS)]
    batches = sum(each.batches for each in middle) / ORDERS
    waiting = sum(each.waiting for each in middle) / ORDERS
    most = 1.0 / max(sum(sum(turn) for turn in training) / len(training), 1e-9)
    error = math.hypot(_spread(drawn) * math.sqrt(len(work) / load.seen), _model_error(load, workers))
    unseen = UNSEEN * math.log2(max(_blocked_at_once(load, work, workers) / max(load.company, 1.0), 1.0))
    low = batches * math.exp(-Z * (error + unseen))
    high = min(batches * math.exp(Z * error), max(most, batches) * (1 + Z * MODEL))
    batches, low, high = (min(each, FASTEST) for each in (batches, low, high))
    return Prediction(workers, batches, low, high, min(waiting, 1.0))


def predict_range(load: Load | None, numbers: Iterable[int]) -> list[Prediction]:
    return [predict(load, workers) for workers in numbers]


def worth_asking(now: int, most: int) -> list[int]:
    """Numbers of workers from half to four times as many as there are, and no more than may be."""
    now = max(now, 1)
    steps = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
    return sorted({max(1, min(round(now * step), max(most, 1))) for step in steps})


def _pool(load: Load, workers: int, memory_budget: int | None) -> Pool:
    budget, ceiling = load.memory_budget, max(load.memory_ceiling, load.memory_budget)
    if memory_budget is not None:
        budget = ceiling = memory_budget
    largest = max(load.largest, 1)
    fit = max(budget // largest, min(ceiling // largest, 2 * workers), 1) if budget else 1 << 30
    return Pool(
        workers=workers,
        processors=load.allowed / load.width if load.allowed > 0 else math.inf,
        others=_others(load) / load.width,
        channels=load.channels or math.inf,
        tasks=load.prefetch_factor * workers if load.prefetch_factor else max(512, 2 * workers),
        bytes=float(fit),
        in_order=load.in_order,
        sharded=load.sharded,
    )


def _others(load: Load) -> float:
    """Processes of others that always need a processor.

    Where processors are to be had, that is the time they take. Where they are not, others got a share like each of us.
    """
    if load.allowed <= 0 or load.others <= 0:
        return 0.0
    needed = [processor for _, processor, _ in load.rows]
    whole = [blocked + processor for blocked, processor, _ in load.rows]
    ours = load.workers * sum(needed) / max(sum(whole), 1)
    left = max(load.allowed - load.others, 0.05 * load.allowed)
    return load.others if ours <= left else load.others * ours / left


def _training(load: Load) -> list[Work]:
    own = sum(load.turns) / len(load.turns)
    share = min(load.training_us / own, 1.0) if own > 0 else 1.0
    inside = load.inside_us / 1e6
    return [Work(turn * (1 - share) / 1e6, turn * share / 1e6 + inside) for turn in load.turns]


def _length(work: Sequence[Work], workers: int) -> int:
    """Batches to simulate: enough that the slowest comes to its end several times."""
    longest, mean = max(map(sum, work)), sum(map(sum, work)) / len(work)
    wanted = max(BATCHES, 6 * workers, 3 * workers * longest / max(mean, 1e-9))
    return int(min(wanted, max(MOST_BATCHES, 4 * workers), 8 * MOST_BATCHES))


def _shuffled(work: Sequence[Work], chance: random.Random) -> list[Work]:
    return chance.sample(work, len(work))


def _spread(drawn: Sequence[Outcome]) -> float:
    """Standard deviation, relative to the mean."""
    mean = sum(each.batches for each in drawn) / len(drawn)
    if not 0 < mean < math.inf:
        return 0.0
    return math.sqrt(sum((each.batches - mean) ** 2 for each in drawn) / (len(drawn) - 1)) / mean


def _model_error(load: Load, workers: int) -> float:
    return MODEL + MODEL_FURTHER * abs(math.log2(workers / max(load.workers, 1)))


def _blocked_at_once(load: Load, work: Sequence[Work], workers: int) -> float:
    if load.channels:
        return 0.0
    whole = sum(map(sum, work))
    return workers * sum(each.blocked for each in work) / whole if whole > 0 else 0.0
