"""Snapshots of a loader that does exactly what a test says, five times a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.insight.numbers import KINDS
from penstock.protocol import LoaderState, Processors, Queues, Snapshot, Times, Worker

INTERVAL = 0.2


@dataclass
class Flow:
    """Counters that grow as they are told to."""

    workers: int = 4
    length: int | None = 1_000_000
    at: float = 1000.0
    epoch: int = 0
    batch: float = 1
    batches: float = 1
    state: LoaderState = "running"
    first_pid: int = 100
    recoveries: int = 0
    allowed: float = 0.0
    """Processors; 0: nothing is known of them."""
    others: float = 0.0
    processor: float = 0.0
    queued: float = 0.0
    knows: list[str] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=lambda: {kind.name: 0.0 for kind in KINDS})
    epoch_spent: dict[str, float] = field(default_factory=lambda: {kind.name: 0.0 for kind in KINDS})
    busy: dict[int, float] = field(default_factory=dict)
    made: dict[int, float] = field(default_factory=dict)

    def run(
        self,
        seconds: float,
        *,
        rate: float = 50.0,
        busy: float = 1.0,
        made: float | None = None,
        queues: Queues | None = None,
        processor: float = 0.0,
        queued: float = 0.0,
        others: float = 0.0,
        **waits: float,
    ) -> Iterator[Snapshot]:
        """Time goes by: `rate` batches a second, workers `busy` for that share, training waiting for those shares.

        Of a worker's busy time it is on a `processor` or `queued` for one, each for that share.
        """
        for _ in range(round(seconds / INTERVAL)):
            self.at += INTERVAL
            shares = {**waits, "compute": 1 - sum(waits.values())}
            for kind, share in shares.items():
                self.spent[kind] += share * INTERVAL
                self.epoch_spent[kind] += share * INTERVAL
            self.others += others * INTERVAL
            self.processor += processor * busy * INTERVAL
            self.queued += queued * busy * INTERVAL
            self.batch += rate * INTERVAL
            self.batches += rate * INTERVAL
            for pid in self.pids:
                self.busy[pid] = self.busy.get(pid, 0.0) + busy * INTERVAL
                each = (rate if made is None else made) * INTERVAL / max(1, self.workers)
                self.made[pid] = self.made.get(pid, 0.0) + each
            yield self.snapshot(queues)

    @property
    def pids(self) -> range:
        return range(self.first_pid, self.first_pid + self.workers)

    def resize(self, workers: int) -> None:
        self.workers = workers

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = 0
        self.epoch_spent = dict.fromkeys(self.epoch_spent, 0.0)

    def snapshot(self, queues: Queues | None = None, **more: Any) -> Snapshot:
        def times(spent: dict[str, float]) -> Times:
            return Times(**{f"{kind}_us": int(1e6 * part) for kind, part in spent.items()})

        return Snapshot(
            0,
            self.at,
            self.state,
            epoch=self.epoch,
            batch=int(self.batch),
            length=self.length,
            batches=int(self.batches),
            target=self.workers,
            queues=queues or Queues(index=4, in_flight=8, window=16),
            times=times(self.spent),
            epoch_times=times(self.epoch_spent),
            workers=[
                Worker(
                    number,
                    pid,
                    "fetching",
                    fetch_us=int(1e6 * self.busy.get(pid, 0.0)),
                    batches=int(self.made.get(pid, 0.0)),
                    cpu_ms=int(1e3 * self.processor),
                    queued_ms=int(1e3 * self.queued),
                )
                for number, pid in enumerate(self.pids)
            ],
            recoveries=self.recoveries,
            unknown=self.knows,
            processors=Processors(self.allowed, int(1e3 * self.others)),
            **more,
        )
