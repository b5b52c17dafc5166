"""Replay: what another number of workers would bring, from what was recorded. Pure, and under 100 ms for a range.

Three things come together. The simulation says what the recorded batches would be with other workers beside them. Where
workers wait for locks, these let so much through and no more. And what was measured, with as many workers as there are
now and with other numbers before, corrects both: next to a measured point a prediction is little more than that point.

How sure that is: by chance, which the simulation shows; less with every doubling away from what was measured; and
where more workers would be blocked at once than ever were, by something of which nobody knows how much more it bears,
the interval reaches down to what such a limit would leave. So it does where batches take so evenly long that workers
may have fallen into step: a lock that they share would not be seen.
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
CYCLES = 4
"""How often the recorded batches are gone through in a simulation, in another order each time."""
EDGES = 24
"""How many times as long as the slowest batch a simulation of one worker is; with more, their ends even out."""
MOST_BATCHES = 2400
MEASURED_FOR = 4.0
"""Seconds: what is predicted is what would be measured over so many."""
MODEL, FURTHER = 0.02, 0.025
"""Relative errors (standard deviations): in any case; for every doubling away from what was measured."""
MISTAKEN = 0.3
"""How far the model is off, as a standard deviation: a measurement that is less sure than that corrects it less."""
SHARPNESS = 8.0
"""How sharply a rate bends from what workers could make to what a lock lets through."""
OTHERS = 0.4
"""How unsure it is what others will take of processors: a standard deviation, relative to their share."""
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
    return predict_range(load, [workers], memory_budget=memory_budget, ordinary_samples=ordinary_samples)[0]


def predict_range(
    load: Load | None,
    numbers: Iterable[int],
    *,
    memory_budget: int | None = None,
    ordinary_samples: bool = False,
    saved: float = 0.0,
) -> list[Prediction]:
    """The same for several numbers. `saved`: as if every batch took that share, 0 to 1, of its time less."""
    reason = why_not(load)
    if load is None or reason:
        return [Prediction(number, enough=False, reason=reason) for number in numbers]
    as_it_is = Replay(load)
    asked = as_it_is
    if memory_budget is not None or ordinary_samples or saved:
        asked = Replay(load, memory_budget, ordinary_samples, saved)
    return [_predict(as_it_is, asked, number) for number in numbers]


def worth_asking(now: int, most: int) -> list[int]:
    """Numbers of workers from half to four times as many as there are, and no more than may be."""
    now = max(now, 1)
    steps = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
    return sorted({max(1, min(round(now * step), max(most, 1))) for step in steps})


class Replay:
    """Simulations of one load, each made once."""

    def __init__(
        self, load: Load, memory_budget: int | None = None, ordinary_samples: bool = False, saved: float = 0.0
    ) -> None:
        self.load = load
        self._budget = memory_budget
        self._work = _work(load, ordinary_samples, saved)
        self._training = _training(load)
        self._known: dict[tuple[int, float], Outcome] = {}
        self._saved = saved

    def predict(self, workers: int) -> Prediction:
        """What so many workers would bring, as things are."""
        return _predict(self, self, workers)

    @property
    def turn(self) -> float:
        """What training takes for a batch by itself, s."""
        return max(sum(map(sum, self._training)) / len(self._training), 1e-9)

    def free(self, workers: int, channels: float | None = None) -> Outcome:
        """What the simulation says, without locks."""
        limit = (self.load.channels or math.inf) if channels is None else channels
        found = self._known.get((workers, limit))
        if found is None:
            pool = _pool(self.load, workers, self._budget, limit)
            length = _length(self._work, workers)
            order = _order(self._work, length)
            found = self._known[workers, limit] = simulate(pool, order, self._training, length)
        return found

    def batches(self, workers: int, channels: float | None = None) -> float:
        """With locks."""
        free, most = self.free(workers, channels).batches, self.load.most / max(1.0 - self._saved, 0.01)
        if self.load.carried and self.load.local is not None and workers > self.load.local:
            # What the network took when it was full it will take, and no more; beside it, what workers here make.
            here = self.free(self.load.local, channels).batches if self.load.local else 0.0
            free = min(free, here + self.load.carried)
        if not most or free <= 0:
            return free
        return free * math.pow(1.0 + math.pow(free / most, SHARPNESS), -1.0 / SHARPNESS)

    def blocked_at_once(self, workers: int) -> float:
        whole = sum(map(sum, self._work))
        return workers * sum(each.blocked for each in self._work) / whole if whole > 0 else 0.0


def _predict(now: Replay, asked: Replay, workers: int) -> Prediction:
    load, free = now.load, asked.free(workers)
    model, (correction, error) = asked.batches(workers), _corrected(now, workers)
    # Its turns are longer where workers are in its way: what it once took it can take.
    most = max(1.0 / asked.turn, max((measured for _, measured, _ in load.measured), default=0.0))
    batches = min(model * correction, max(most, model))
    chance = free.noise * math.sqrt(1.0 / load.seen + 1.0 / max(batches * MEASURED_FOR, 1.0))
    by_others = _by_others(asked, workers)
    error = math.hypot(chance, error, by_others)
    low, high = batches * math.exp(-Z * error), batches * math.exp(Z * error)
    high = min(high, max(most, batches) * (1 + Z * math.hypot(MODEL, by_others)))
    low = min(low, _least(now, asked, workers, batches))
    batches, low, high = (min(each, FASTEST) for each in (batches, low, high))
    return Prediction(workers, batches, low, high, _waiting(free, batches, asked.turn))


def _corrected(now: Replay, workers: int) -> tuple[float, float]:
    """By how much measured points say that the model is wrong, and how sure that is (a standard deviation)."""
    points = []
    for number, measured, error in now.load.measured:
        model = now.batches(number)
        if measured > 0 and model > 0 and error < 0.5:
            believed = MISTAKEN**2 / (MISTAKEN**2 + error**2)
            points.append((math.log2(number), believed * math.log(measured / model), error))
    place = math.log2(workers)
    below = max((point for point in points if point[0] <= place), default=None)
    above = min((point for point in points if point[0] >= place), default=None)
    if below is None and above is None:
        return 1.0, math.hypot(2 * MODEL, FURTHER * abs(place - math.log2(max(now.load.workers, 1))))
    if below is None or above is None or below is above:
        at, ratio, error = below or above or (0.0, 0.0, 0.0)
        return math.exp(ratio), math.hypot(MODEL, error, FURTHER * abs(place - at))
    share = (place - below[0]) / (above[0] - below[0])
    ratio = below[1] + share * (above[1] - below[1])
    away = min(place - below[0], above[0] - place)
    return math.exp(ratio), math.hypot(MODEL, max(below[2], above[2]), FURTHER * away, 0.25 * (above[1] - below[1]))


def _by_others(asked: Replay, workers: int) -> float:
    """How unsure a prediction is because others need processors, too: the more, the fewer are left over."""
    load = asked.load
    if load.allowed <= 0:
        return 0.0
    computing = (1.0 - asked.blocked_at_once(workers) / workers) * _local(load, workers) / workers
    return OTHERS * min(load.others / load.allowed, 1.0) * min(2 * computing + 0.05, 1.0)


def _least(now: Replay, asked: Replay, workers: int, batches: float) -> float:
    """What it would be, at the least, if what nobody knows were as bad as it can be."""
    load, least = now.load, batches
    company = max(load.company, max((now.blocked_at_once(each[0]) for each in load.measured), default=0.0), 1.0)
    if not load.channels and load.unsure > 0 and asked.blocked_at_once(workers) > company:
        bound = asked.batches(workers, company)
        least = min(least, batches * (min(bound / batches, 1.0) if batches > 0 else 1.0) ** load.unsure)
    if load.even and not load.most and load.measured and workers > max(number for number, _, _ in load.measured):
        # Workers in step are never seen to wait for a lock, however full it is; it lets through what it did.
        seen = max(measured for _, measured, _ in load.measured)
        least = min(least, seen * math.exp(-Z * MODEL))
    if load.most and load.measured:
        # A lock that was not always taken may be fuller than it looks, but lets through what it did.
        seen = max((measured for number, measured, _ in load.measured if number <= workers), default=0.0)
        least = min(least, max(seen, min(least, load.most)) * math.exp(-Z * MODEL)) if load.crowded < 1 else least
    return least


def _waiting(free: Outcome, batches: float, turn: float) -> float:
    """Share of the time in which training waits, given what it gets."""
    if batches >= 0.999 * free.batches:
        return min(free.waiting, 1.0)
    return min(max(1.0 - batches * turn, 0.0), 1.0)


def _work(load: Load, ordinary_samples: bool, saved: float) -> list[Work]:
    rows = [(blocked / 1e6, processor / 1e6, less / 1e6) for blocked, processor, less in load.rows]
    if ordinary_samples:  # what is saved is blocked time first, then processor time
        rows = [(max(b - s, 0.0), max(p - max(s - b, 0.0), 0.0), 0.0) for b, p, s in rows]
    return [Work(blocked * (1 - saved), processor * (1 - saved)) for blocked, processor, _ in rows]


def _pool(load: Load, workers: int, memory_budget: int | None, channels: float) -> Pool:
    budget, ceiling = load.memory_budget, max(load.memory_ceiling, load.memory_budget)
    if memory_budget is not None:
        budget = ceiling = memory_budget
    largest = max(load.largest, 1)
    fit = max(budget // largest, min(ceiling // largest, 2 * workers), 1) if budget else 1 << 30
    return Pool(
        workers=workers,
        processors=load.allowed / load.width if load.allowed > 0 else math.inf,
        others=_others(load) / load.width,
        channels=channels,
        tasks=load.prefetch_factor * workers if load.prefetch_factor else max(512, 2 * workers),
        bytes=float(fit),
        in_order=load.in_order,
        sharded=load.sharded,
        local=load.local,
        elsewhere=load.elsewhere / load.width if load.elsewhere else math.inf,
    )


def _others(load: Load) -> float:
    """Processes of others that always need a processor.

    Where processors are to be had, that is the time they take. Where they are not, others got a share like each of us.
    """
    if load.allowed <= 0 or load.others <= 0:
        return 0.0
    needed = [processor for _, processor, _ in load.rows]
    whole = [blocked + processor for blocked, processor, _ in load.rows]
    ours = _local(load, load.workers) * sum(needed) / max(sum(whole), 1)
    left = max(load.allowed - load.others, 0.05 * load.allowed)
    return load.others if ours <= left else load.others * ours / left


def _local(load: Load, workers: int) -> int:
    """Of so many workers, those that run here."""
    return workers if load.local is None else min(workers, load.local)


def _training(load: Load) -> list[Work]:
    own = sum(load.turns) / len(load.turns)
    share = min(load.training_us / own, 1.0) if own > 0 else 1.0
    inside = load.inside_us / 1e6
    return [Work(turn * (1 - share) / 1e6, turn * share / 1e6 + inside) for turn in load.turns]


def _length(work: Sequence[Work], workers: int) -> int:
    """Batches to simulate: so many that it does not matter whether some worker is at a slow one when it ends."""
    longest, mean = max(map(sum, work)), sum(map(sum, work)) / len(work)
    wanted = max(CYCLES * len(work), 6 * workers, EDGES * math.sqrt(workers) * longest / max(mean, 1e-9))
    return int(min(wanted, max(MOST_BATCHES, 6 * workers)))


def _order(work: Sequence[Work], length: int) -> list[Work]:
    """All of them as often as each other, in one random order: slow ones come together as they do in truth. The same
    question has the same answer.
    """
    order = list(work) * math.ceil(length / len(work) + 1)
    random.Random(len(work)).shuffle(order)
    return order
