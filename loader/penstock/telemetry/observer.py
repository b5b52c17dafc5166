"""What pools tell telemetry: it becomes events and counters of the ledger.

One object a pool. It never looks into the engine and never waits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from operator import sub
from typing import Any

from msgspec.structs import replace

from ..failures import signal_name
from ..insight.recording import Glance, Made
from ..pool.observer import Costs, Stalled
from ..pool.tasks import Batch
from ..protocol import CommandEvent, SampleCost, Stall
from ..stack import brief, cut
from ..usage import Waits
from .costs import Passage, SlowestSamples, sketch
from .ledger import Ledger
from .stalls import SHORT, OpenStall, StallWatch


class PoolObserver:
    """Implements the pool's `Observer`; what its methods are told stands there."""

    def __init__(self, ledger: Ledger, batch_size: int | None, record_samples: int, long_stall: int) -> None:
        """`batch_size`: None if every sample is its own batch, and 0 if the batches are not all of one size."""
        self.ledger = ledger
        self.pin = ledger.pin
        self._batch_size = batch_size
        self.stalls = StallWatch(long_stall)
        self._record = record_samples
        self.slowest = SlowestSamples(record_samples, batch_size)
        self._before: Costs = {}
        self._gone: list[list[int]] = []

    def epoch_began(self, costs: Costs) -> None:
        """Sample costs are those of one epoch: remember where each worker's counts stand."""
        self.slowest = SlowestSamples(self._record, self._batch_size)
        self._before = costs
        self._gone = []

    def epoch_ended(self, costs: Costs) -> None:
        self.ledger.cost = self.sample_cost(costs)
        self.ledger.slowest = self.slowest.recorded()

    def batch_arrived(self, worker: int, batch: Batch, indices: Any, counted: bool = False) -> None:
        number, shard = batch.batch, batch.shard
        if self.slowest.wants(batch.slowest_ns):
            passage = Passage(worker, batch.start, batch.fetched, batch.collated, batch.sent)
            slow = batch.slowest, batch.slowest_ns, batch.slow
            self.slowest.add_batch(number, shard, indices, slow, passage, self.ledger.sightings)
        if self.stalls.open is not None:
            index = self.slowest.name(number, shard, indices, batch.slowest)
            self.stalls.finished(batch.epoch, (shard, number), index[:256], batch.slowest_ns)
        if not counted:
            self.batch_made(worker, batch)
        spans = self.ledger.spans
        if spans.stride and number % spans.stride == 0:
            spans.add((batch.epoch, shard, number), worker, batch.start, batch.fetched, batch.collated, batch.sent)

    def batch_made(self, worker: int, batch: Batch) -> None:
        self.ledger.recording.arrived += 1
        if batch.processor >= 0:
            self.ledger.recording.made.append(_made(worker, batch))

    def worker_born(self, worker: int, pid: int) -> None:
        self.ledger.worker("born", worker, pid)

    def worker_left(self, worker: int, pid: int, exitcode: int) -> None:
        self.ledger.worker("retired", worker, pid, exitcode, signal_name(exitcode))

    def worker_died(self, worker: int, pid: int, exitcode: int, batch: int, retried: bool) -> None:
        self.ledger.worker("died", worker, pid, exitcode, signal_name(exitcode), batch, retried)

    def worker_gone(self, worker: int, costs: list[int]) -> None:
        self._gone.append(self._since(worker, costs))
        self._before = {each: counts for each, counts in self._before.items() if each != worker}

    def recovered(self) -> None:
        self.ledger.recoveries += 1

    def warn(self, about: str, message: str) -> None:
        if about not in self.ledger.warned:
            self.ledger.warned.add(about)
            # Told by the iterating thread: where warnings are errors, the conductor must not end of one.
            self.ledger.warnings.append(message)

    def resumed(self, workers: int, batch: int) -> None:
        self.ledger.emit(CommandEvent(time.time(), "resume", "applied", "timer", "", None, workers, workers, batch))

    def glanced(self, now: float, workers: int, flows: bool, waits: Sequence[Waits]) -> None:
        counts, recording = Counter(waits), self.ledger.recording
        kinds = counts[Waits.LOCK], counts[Waits.SLEEP], counts[Waits.OTHER]
        recording.glance(Glance(now, workers, flows, recording.arrived, self.ledger.batches, len(waits), *kinds))

    def stalled(self, now: int, stall: Stalled | None) -> None:
        if stall is None:
            ended = None if self.stalls.open is None else self.stalls.observe(now, False)
        else:
            ended = self.stalls.observe(now, True, *stall)
        if ended is not None:
            self.ledger.stalls += 1
            self.ledger.stall_ns += ended.length()
            event = _event(ended, now)
            if ended.length() >= SHORT and not self.ledger.hangs.ends(event):
                self.ledger.emit(event)
                self._ask(event, ended)

    def _ask(self, event: Stall, stall: OpenStall) -> None:
        """While a profile is taken, short stalls get their stack, too: they are told again with it."""
        sightings, ledger = self.ledger.sightings, self.ledger
        if sightings is None or event.stack or stall.worker < 0:
            return

        def tell(stack: str) -> None:
            ledger.emit(replace(event, stack=cut(stack), brief=cut(brief(stack))))

        sightings.ask(stall.worker, stall.began, stall.ended, tell)

    def wants_stack(self, now: int) -> bool:
        return self.stalls.stack_due(now)

    def stack_taken(self, stack: str) -> None:
        self.stalls.attach(stack)

    def next_look(self, now: int) -> int | None:
        return self.stalls.next_due(now)

    def sample_cost(self, costs: Costs) -> SampleCost:
        """Of this epoch; `costs` are those of the workers that are there."""
        since = [self._since(worker, counts) for worker, counts in costs.items()]
        return sketch([*since, *self._gone], self.slowest)

    def _since(self, worker: int, counts: list[int]) -> list[int]:
        before = self._before.get(worker)
        return counts if before is None else list(map(sub, counts, before))


def _made(worker: int, batch: Batch) -> Made:
    return Made(
        batch.start / 1e9,
        (batch.sent - batch.start) / 1e9,
        batch.processor / 1e9,
        max(batch.queued, 0) / 1e9,
        0 if batch.payload is None else batch.payload.nbytes,
        worker,
        max(batch.slowest_ns, 0) / 1e9,
    )


def _event(stall: OpenStall, now: int) -> Stall:
    began = time.time() - (now - stall.began) / 1e9
    return Stall(
        at=began,
        us=stall.length() // 1000,
        held_back=stall.held_back,
        epoch=stall.epoch,
        batch=stall.batch,
        worker=stall.worker,
        slowest_index=stall.slowest_index,
        slowest_us=stall.slowest_ns // 1000,
        stack=cut(stall.stack or ""),
        brief=cut(brief(stall.stack or "")),
    )
