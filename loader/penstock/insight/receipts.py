"""Receipts: what a change of the number of workers was predicted to bring, and what it brought. Pure.

Told how things stand several times a second. What counts is time in which batches flow: not pauses, not the end of an
epoch, when nothing is left to hand out. Measured is what workers made, or what training took if that is less: after a
shrink training lives on what is finished for a while, after a growth workers fill the window first.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ..protocol import Brought, Measured, Prediction, Receipt, Snapshot

LEAST_BATCHES, LEAST_ROUNDS = 40, 6
"""A rate is of so many batches at the least, and of so many of every worker."""
LEAST_SECONDS = 2.0
BEFORE_SECONDS, BEFORE_ROUNDS = 0.75, 3
"""What is asked of the rate before a change, which nobody can go on measuring: less, with the error that it has."""
VAGUE = 0.5
"""Error from which on two rates are not compared."""
SETTLING = 2
"""Batches of every worker that do not count after a change."""
PARTS = 8
"""Parts of a measurement whose differences say how sure it is."""
KEPT = 32
"""Measurements that are remembered."""


class Moment(NamedTuple):
    """How a loader stands."""

    at: float
    made: int
    """Batches that workers have made so far."""
    taken: int
    """Batches that training has taken so far."""
    workers: int
    """Workers alive."""
    flows: bool
    """Workers are given tasks: not paused, not at the end of an epoch."""


class Count:
    """Counts batches by process: a worker that goes takes nothing back."""

    def __init__(self) -> None:
        self.made = 0
        self._before: dict[tuple[int, int], int] = {}

    def moment(self, snapshot: Snapshot) -> Moment:
        counts = {(worker.id, worker.pid): worker.batches for worker in snapshot.workers if worker.pid}
        self.made += sum(max(batches - self._before.get(which, 0), 0) for which, batches in counts.items())
        self._before = counts
        out = snapshot.batch + snapshot.queues.in_flight
        drains = snapshot.length is not None and out >= snapshot.length
        alive = sum(worker.state not in ("dead", "retiring") for worker in snapshot.workers)
        return Moment(
            snapshot.at, self.made, snapshot.batches, alive, snapshot.state == "running" and not drains and alive > 0
        )


@dataclass
class Rate:
    """Batches a second, over the time in which they flow."""

    seconds: float = 0.0
    made: int = 0
    taken: int = 0
    pieces: list[tuple[float, int, int]] = field(default_factory=list)

    def add(self, seconds: float, made: int, taken: int) -> None:
        self.seconds += seconds
        self.made += made
        self.taken += taken
        self.pieces.append((seconds, made, taken))
        if len(self.pieces) > 16 * PARTS:  # two become one
            pairs = zip(self.pieces[::2], self.pieces[1::2], strict=False)
            self.pieces = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]

    def batches(self) -> float:
        return min(self.made, self.taken) / self.seconds if self.seconds > 0 else 0.0

    def is_enough(self, workers: int) -> bool:
        least = max(LEAST_BATCHES, LEAST_ROUNDS * workers)
        return self.seconds >= LEAST_SECONDS and min(self.made, self.taken) >= least

    def is_something(self, workers: int) -> bool:
        """Whether it is worth a comparison."""
        return self.seconds >= BEFORE_SECONDS and min(self.made, self.taken) >= BEFORE_ROUNDS * workers

    def error(self) -> float:
        """Nine times out of ten the rate is right within so much, relative to it."""
        which = 1 if self.made <= self.taken else 2
        size = max(len(self.pieces) // PARTS, 1)
        parts = [self.pieces[start : start + size] for start in range(0, size * PARTS, size)]
        rates = [sum(p[which] for p in part) / s for part in parts if (s := sum(p[0] for p in part)) > 0]
        mean = sum(rates) / len(rates) if rates else 0.0
        if len(rates) < 2 or mean <= 0:
            return 1.0
        deviation = math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1))
        return 1.645 * deviation / mean / math.sqrt(len(rates))


@dataclass(frozen=True)
class Change:
    """A change of the number of workers, with what was predicted of it."""

    before: int
    after: int
    prediction: Prediction
    by: str = ""
    command: str = ""


class Receipts:
    """Of one loader."""

    def __init__(self) -> None:
        self.measured: deque[Measured] = deque(maxlen=KEPT)
        self._rate = Rate()
        self._last: Moment | None = None
        self._change: Change | None = None
        self._settled_at = 0
        """Batches made from which on it counts."""
        self._rate_before: Rate | None = None
        self._earlier = 0, Rate()
        """Workers before the last time that their number changed, and their rate: a change may be heard of late."""

    def change(self, change: Change) -> None:
        """Another number of workers was asked for, and holds from now on."""
        if self._change is None:
            workers, earlier = self._earlier
            rates = [self._rate, *([earlier] if workers == change.before else [])]
            self._rate_before = next((rate for rate in rates if rate.is_something(change.before)), None)
        else:  # what the one before brought will never be known
            change = Change(self._change.before, change.after, change.prediction, change.by, change.command)
        self._change = change
        self._begin_anew()

    def take(self, now: Moment) -> Receipt | None:
        """How it stands now; returns a receipt when enough was seen after a change."""
        last, self._last = self._last, now
        if last is None or now.at <= last.at or not (last.flows and now.flows):
            return None
        if now.workers != last.workers or self._settled_at < 0:
            if self._rate.pieces:
                self._earlier = last.workers, self._rate
            self._rate = Rate()
            self._settled_at = now.made + SETTLING * now.workers
            return None
        if now.made < self._settled_at:
            return None
        self._rate.add(now.at - last.at, now.made - last.made, now.taken - last.taken)
        if self._rate.is_something(now.workers):
            self._earlier = 0, Rate()
        change = self._change
        if change is None or now.workers != change.after or not self._rate.is_enough(now.workers):
            return None
        self._change = None
        return self._receipt(now.at, change)

    def _begin_anew(self) -> None:
        self._rate, self._settled_at = Rate(), -1

    def _receipt(self, at: float, change: Change) -> Receipt:
        rate, before, predicted = self._rate, self._rate_before, change.prediction
        batches, error = rate.batches(), rate.error()
        if before is not None:
            self.measured.append(Measured(at, change.before, before.batches()))
        self.measured.append(Measured(at, change.after, batches))
        receipt = Receipt(
            at=at,
            before=change.before,
            after=change.after,
            measured=batches,
            error=error,
            batches=min(rate.made, rate.taken),
            measured_before=None if before is None else before.batches(),
            predicted=predicted.batches if predicted.enough else None,
            low=predicted.low,
            high=predicted.high,
            brought=_brought(rate, before),
            by=change.by[:256],
            command=change.command[:256],
        )
        return msgspec.structs.replace(receipt, text=in_words(receipt))


def in_words(receipt: Receipt) -> str:
    """A receipt in a sentence."""
    change = f"{receipt.before} → {receipt.after} workers"
    rate = f"{_figure(receipt.measured)} batches/s (± {max(round(100 * receipt.error), 1)} %)"
    if receipt.measured_before is not None:
        rate = f"{_figure(receipt.measured_before)} → {rate}"
    said = {"better": "", "same": ", which makes no difference", "worse": ", which is worse", "unknown": ""}
    predicted = ""
    if receipt.predicted is not None:
        about = f"about {_figure(receipt.predicted)} predicted, {_figure(receipt.low)} to {_figure(receipt.high)}"
        predicted = f"; {about}"
    return f"{change}: {rate}{said[receipt.brought]}{predicted}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _brought(rate: Rate, before: Rate | None) -> Brought:
    if before is None or before.batches() <= 0:
        return "unknown"
    ratio = rate.batches() / before.batches()
    sure = max(math.hypot(rate.error(), before.error()), 0.03)
    if sure > VAGUE:
        return "unknown"
    return "better" if ratio > 1 + sure else "worse" if ratio < 1 - sure else "same"
