"""What the conductor tells telemetry, at the few seams where it does.

One object a pool. It turns what it is told into events and counters of the ledger. It never looks into the engine and
never waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from operator import sub
from typing import Any

from ..pool.board import ROW, Board, Word
from ..pool.tasks import Batch
from ..protocol import SampleCost, Stall
from .costs import SlowestSamples, sketch
from .ledger import Ledger
from .stalls import SHORT, OpenStall, StallWatch


class Observer:
    def __init__(
        self, ledger: Ledger, board: Board, batch_size: int | None, record_samples: int, long_stall: int
    ) -> None:
        """`batch_size`: None if every sample is its own batch, and 0 if the batches are not all of one size."""
        self.ledger = ledger
        self._batch_size = batch_size
        self.stalls = StallWatch(long_stall)
        self._board = board
        self._record = record_samples
        self.slowest = SlowestSamples(record_samples, batch_size)
        self._before: dict[int, list[int]] = {}
        self._gone: list[list[int]] = []

    def epoch_began(self, workers: list[int]) -> None:
        """Sample costs are those of one epoch: remember where each worker's counts stand."""
        self.slowest = SlowestSamples(self._record, self._batch_size)
        self._before = {worker: self._counts(worker) for worker in workers}
        self._gone = []

    def batch_arrived(self, batch: Batch, indices: Any) -> None:
        """A worker's batch was accepted; `indices` are None for a shard."""
        number, shard = batch.batch, batch.shard
        self.slowest.add_batch(number, shard, indices, (batch.slowest, batch.slowest_ns, batch.slow))
        if self.stalls.open is not None:
            index = self.slowest.name(number, shard, indices, batch.slowest)
            self.stalls.finished(batch.epoch, (shard, number), index[:256], batch.slowest_ns)

    def add_span(self, worker: int, batch: Batch) -> None:
        """For the timeline, if somebody looks."""
        spans = self.ledger.spans
        if spans.stride and batch.batch % spans.stride == 0:
            key = batch.epoch, batch.shard, batch.batch
            spans.add(key, worker, batch.start, batch.fetched, batch.collated, batch.sent)

    def worker_gone(self, worker: int) -> None:
        """Its row on the board will be used again."""
        self._gone.append(self._since(worker))
        self._before.pop(worker, None)
        self._board.clear(worker)

    def waited(self, now: int, stalled: bool, **about: Any) -> None:
        """Training waits behind a missing batch, or no longer."""
        ended = self.stalls.observe(now, stalled, **about)
        if ended is not None:
            self.ledger.stalls += 1
            self.ledger.stall_ns += ended.length()
            if ended.length() >= SHORT:
                self.ledger.emit(_event(ended, now))

    def sample_cost(self, workers: Iterable[int]) -> SampleCost:
        """Of this epoch; `workers` are those that are there."""
        return sketch([*map(self._since, workers), *self._gone], self.slowest)

    def epoch_ended(self, workers: Iterable[int]) -> None:
        self.ledger.cost = self.sample_cost(workers)
        self.ledger.slowest = self.slowest.recorded()

    def _counts(self, worker: int) -> list[int]:
        return self._board.row(worker)[Word.COST : ROW].tolist()

    def _since(self, worker: int) -> list[int]:
        counts, before = self._counts(worker), self._before.get(worker)
        if before is None:
            return counts
        return list(map(sub, counts, before))


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
        stack=(stall.stack or "")[:16384],
    )
