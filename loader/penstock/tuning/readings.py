"""From a loader's snapshots to the tuner's readings. Pure: it is told what time it is."""

from __future__ import annotations

from msgspec import UNSET

from ..protocol import Snapshot, Worker
from .reading import Reading

ABSENT = ("starting", "retiring", "dead")
"""States of workers that make no batches now, or soon will not."""


class Readings:
    """Adds up over workers that come and go, so that sums only grow."""

    def __init__(self, local: int | None = None) -> None:
        """`local`: as in `protocol.Config`."""
        self._local = local
        self._workers: dict[tuple[int, int], Worker] = {}
        """By number and pid: those of two machines may have the same."""
        self._made = 0
        self._busy_us = 0
        self._since_told = (0, 0, 0)
        """Busy time (µs), processor time and time in the run queue (ms) since the system was asked last."""
        self._shares: tuple[float, float] | None = None
        """Of the time at batches: how much was on a processor, how much in the run queue, as the system said last."""
        self._processor = self._queued = self._away = 0.0
        self._training: tuple[float, int] | None = None
        self._training_uses = 0.0

    @property
    def uses(self) -> float:
        """Processors that training itself uses."""
        return self._training_uses

    def take(
        self, snapshot: Snapshot, now: float, others: float = 0.0, memory: tuple[bool, bool] = (False, False)
    ) -> Reading:
        """A reading at this moment. `others`: processors that other ranks of the host use. `memory`: whether it is
        short, and whether it is nearly used up.
        """
        self._add_up(snapshot)
        self._ask_training(snapshot, now)
        known = self._shares is not None and snapshot.knows("workers.cpu_ms")
        times = snapshot.times
        return Reading(
            at=now,
            workers=sum(worker.state not in ABSENT for worker in snapshot.workers),
            epoch=snapshot.epoch,
            batches=snapshot.batches,
            made=self._made,
            compute=times.compute_us / 1e6,
            waiting=(times.starvation_us + times.reorder_stall_us) / 1e6,
            busy=self._busy_us / 1e6,
            processor=self._processor if known else None,
            queued=self._queued if known and snapshot.knows("workers.queued_ms") else None,
            away=self._away,
            processors=self._processors(snapshot, others),
            steady=_is_steady(snapshot),
            pressed=memory[0],
            alarm=memory[1],
        )

    def _processors(self, snapshot: Snapshot, others: float) -> float:
        """Those that workers may use, here and on other machines; 0: not known."""
        allowed = snapshot.processors.allowed
        here = max(allowed - self._training_uses - others, 0.1) if allowed else 0.0
        if self._local is None:
            return here
        machines = [] if snapshot.machines is UNSET else snapshot.machines
        there = sum(machine.processors for machine in machines)
        return min(here, self._local) + there if there and allowed else 0.0

    def _add_up(self, snapshot: Snapshot) -> None:
        busy_us = away_us = processor_ms = queued_ms = 0
        there = snapshot.elsewhere()
        workers = {(worker.id, worker.pid): worker for worker in snapshot.workers if worker.pid}
        for which, worker in workers.items():
            before = self._workers.get(which)
            self._made += worker.batches - (0 if before is None else before.batches)
            grown = _busy(worker) - (0 if before is None else _busy(before))
            busy_us += grown
            away_us += grown if worker.id in there else 0
            processor_ms += worker.cpu_ms - (worker.cpu_ms if before is None else before.cpu_ms)
            queued_ms += worker.queued_ms - (worker.queued_ms if before is None else before.queued_ms)
        self._workers = workers
        self._busy_us += busy_us
        busy, processor, queued = self._since_told
        told = (busy + busy_us, processor + processor_ms, queued + queued_ms)
        if (processor_ms or queued_ms) and told[0] > 0:
            # The system is asked once a second: until it is asked again, its last answer stands for what is.
            self._shares = min(told[1] * 1e3 / told[0], 1.0), min(told[2] * 1e3 / told[0], 1.0)
            told = (0, 0, 0)
        self._since_told = told
        if self._shares is not None:
            self._processor += busy_us / 1e6 * self._shares[0]
            self._away += away_us / 1e6 * self._shares[0]
            self._queued += busy_us / 1e6 * self._shares[1]

    def _ask_training(self, snapshot: Snapshot, now: float) -> None:
        spent = snapshot.processors.training_ms
        if self._training is None:
            self._training = now, spent
        elif now - self._training[0] >= 2.0:
            self._training_uses = max(spent - self._training[1], 0) / 1e3 / (now - self._training[0])
            self._training = now, spent


def _busy(worker: Worker) -> int:
    return worker.fetch_us + worker.collate_us + worker.send_us


def _is_steady(snapshot: Snapshot) -> bool:
    """An epoch is under way, nobody holds it up, and there are batches left to hand out."""
    if snapshot.state != "running" or not snapshot.workers:
        return False
    return snapshot.length is None or snapshot.batch + snapshot.queues.in_flight < snapshot.length
