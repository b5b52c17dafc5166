"""The rates of one loader over the last minutes, and what each of its workers did in the last seconds."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from penstock.insight.numbers import KINDS
from penstock.insight.shares import Shares, normalised
from penstock.protocol import History, Rates, Snapshot, Worker

KEPT = 120.0
"""Seconds of rates that are kept."""
SAME = 0.001
"""Two samples closer than this are the same sample, heard twice."""
WORKER_WINDOW = 5.0
FIELDS = Rates.__struct_fields__


class Track:
    """What was heard of one loader."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Rates]] = []

    @property
    def last(self) -> float:
        return self._samples[-1][0] if self._samples else math.nan

    def push(self, at: float, rates: Rates) -> None:
        """Take in a live sample. One that is not newer than the last is a repetition."""
        if not self._samples or at > self.last + SAME:
            self._samples.append((at, rates))
            self._forget()

    def merge(self, history: History) -> None:
        """Take in what the backend remembers: it fills holes and the time before we looked."""
        known = {round(at / SAME) for at, _ in self._samples}
        columns = [history.mean.get(field, []) for field in FIELDS]
        for place, at in enumerate(history.at):
            if round(at / SAME) not in known:
                self._samples.append((at, Rates(*(column[place] for column in columns))))
        self._samples.sort(key=lambda sample: sample[0])
        self._forget()

    def average(self, start: float, end: float) -> Rates | None:
        """Mean of every rate between two moments; None without a sample."""
        chosen = [rates for at, rates in self._samples if start <= at < end]
        if not chosen:
            return None
        return Rates(*(sum(getattr(rates, field) for rates in chosen) / len(chosen) for field in FIELDS))

    def shares(self, start: float, end: float) -> Shares | None:
        mean = self.average(start, end)
        return None if mean is None else normalised([getattr(mean, kind.name) for kind in KINDS])

    def _forget(self) -> None:
        horizon = self.last - KEPT
        if self._samples[0][0] < horizon - 10:  # in lots, not one by one
            self._samples = [sample for sample in self._samples if sample[0] >= horizon]


@dataclass(frozen=True)
class WorkerLine:
    """A worker and what it did over the last few seconds. NaN where it finished no batch in them."""

    worker: Worker
    rate: float = math.nan
    """Batches per second."""
    fetch: float = math.nan
    """Microseconds a batch, as the two after it."""
    collate: float = math.nan
    send: float = math.nan
    cpu: float = math.nan
    """Share of one processor."""


class WorkerRates:
    """From counters to rates per worker, over a window that slides with the snapshots."""

    def __init__(self) -> None:
        self._past: deque[Snapshot] = deque()

    def note(self, snapshot: Snapshot) -> None:
        if self._past and snapshot.at <= self._past[-1].at:
            if snapshot.at == self._past[-1].at:
                return
            self._past.clear()
        self._past.append(snapshot)
        while len(self._past) > 2 and snapshot.at - self._past[0].at > WORKER_WINDOW:
            self._past.popleft()

    def lines(self) -> list[WorkerLine]:
        return [self._line(worker, self._past[-1].at) for worker in self._past[-1].workers] if self._past else []

    def _line(self, worker: Worker, at: float) -> WorkerLine:
        for past in self._past:
            before = next((w for w in past.workers if w.pid == worker.pid and w.id == worker.id), None)
            if before is None or past.at >= at:
                continue
            seconds, batches = at - past.at, worker.batches - before.batches
            seen = worker.fetch_us or worker.collate_us or worker.send_us  # not of a torch DataLoader's
            each = 1 / batches if batches > 0 and seen else math.nan
            return WorkerLine(
                worker,
                batches / seconds,
                (worker.fetch_us - before.fetch_us) * each,
                (worker.collate_us - before.collate_us) * each,
                (worker.send_us - before.send_us) * each,
                (worker.cpu_ms - before.cpu_ms) / 1e3 / seconds,
            )
        return WorkerLine(worker)
