"""A snapshot of a loader: read off the ledger, the pool's windows and the board, without a lock.

Numbers of one snapshot may be a step of one batch apart from each other, because the engine goes on while they are
read; each by itself is right.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..budget import memory_limits
from ..iteration.inline import InlineIterator
from ..pool.board import STATES, TIME_OF, Word
from ..pool.conductor import Conductor
from ..pool.pool import Pool
from ..pool.roster import WorkerHandle
from ..protocol import LoaderState, Queues, SampleCost, Snapshot, Stalls, Worker

if TYPE_CHECKING:
    from ..iteration.base import EpochIterator
    from .ledger import Ledger

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_USAGE_AGE = 1.0
"""Seconds for which a worker's memory and processor time are not read again."""


class Usage:
    """What the system says of memory and processor time, read once a second."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int, int]] = {}
        self._budget = (-_USAGE_AGE, 0)

    def budget(self, given: int | None) -> int:
        """The memory budget of an epoch that were to begin now."""
        now = time.monotonic()
        if now - self._budget[0] >= _USAGE_AGE:
            self._budget = (now, memory_limits(given)[0])
        return self._budget[1]

    def of(self, pid: int) -> tuple[int, int]:
        """(bytes, ms); zeros for a process that is gone, or where there is no /proc."""
        now = time.monotonic()
        known = self._known.get(pid)
        if known is None or now - known[0] >= _USAGE_AGE:
            known = self._known[pid] = (now, *_read_usage(pid))
        return known[1:]

    def keep(self, pids: set[int]) -> None:
        """Forget all others."""
        for pid in self._known.keys() - pids:
            self._known.pop(pid, None)


def _read_usage(pid: int) -> tuple[int, int]:
    # As few system calls as can be: each lets go of the interpreter lock, and getting it back interrupts training.
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(file, 4096)
        finally:
            os.close(file)
        fields = line.rpartition(b")")[2].split()
        return int(fields[21]) * _PAGE, int((int(fields[11]) + int(fields[12])) * _TICK_MS)
    except (OSError, IndexError, ValueError):
        return 0, 0


def take(
    seq: int,
    ledger: Ledger,
    iterator: EpochIterator | None,
    pool: Pool | None,
    usage: Usage,
    *,
    state: LoaderState,
    length: int | None,
    target: int,
    pending: int | None,
    memory_budget: int | None,
) -> Snapshot:
    now = time.monotonic_ns()
    conductor = None if pool is None else pool.conductor
    queues = None if conductor is None else _queues(conductor)
    if conductor is None or queues is None:  # the budget is looked up only then: that takes its time
        queues = Queues(memory_budget=usage.budget(memory_budget), **_slots(conductor))
    cost, slowest = _samples(ledger, iterator, conductor)
    return Snapshot(
        seq=seq,
        at=time.time(),
        state=state,
        epoch=ledger.current,
        batch=ledger.batch if iterator is None or iterator.ended else iterator.place.batch,
        length=length,
        batches=ledger.batches,
        samples=ledger.samples,
        bytes=ledger.bytes,
        target=target,
        pending=pending,
        queues=queues,
        times=ledger.times.times(now),
        epoch_times=ledger.times.since(ledger.epoch_times, now),
        stalls=Stalls(ledger.stalls, ledger.stall_ns // 1000),
        pin=ledger.pin.counters(),
        cost=cost,
        workers=[] if conductor is None else _workers(conductor, usage, now),
        digest=ledger.digest.hex(),
        recoveries=ledger.recoveries,
        dropped=ledger.dropped + ledger.spans.lost,
        slowest=slowest,
    )


def _samples(
    ledger: Ledger, iterator: EpochIterator | None, conductor: Conductor | None
) -> tuple[SampleCost, list[tuple[str, int]]]:
    """What the samples of the epoch under way cost, or of the last one."""
    if conductor is not None and conductor.epoch is not None:
        ids = [worker.id for worker in conductor.roster]
        return conductor.observer.sample_cost(ids), conductor.observer.slowest.recorded()
    if isinstance(iterator, InlineIterator) and not iterator.ended:
        return iterator.costs.sample_cost(), iterator.costs.slowest.recorded()
    return ledger.cost, ledger.slowest


def _slots(conductor: Conductor | None) -> dict[str, int]:
    tables = [] if conductor is None else [worker.slots for worker in conductor.roster]
    used = sum(table.used for table in tables)
    return {
        "slots_used": used,
        "slots_free": max(sum(len(table) for table in tables) - used, 0),
        "slots_bytes": sum(table.bytes for table in tables),
    }


def _queues(conductor: Conductor) -> Queues | None:
    """Of the epoch under way; None: there is none."""
    epoch = conductor.epoch
    if epoch is None:
        return None
    window = epoch.window
    limits = window.limits
    return Queues(
        index=sum(_waiting(conductor, worker) for worker in conductor.roster),
        in_flight=max(window.unfinished + window.held + window.delivered - epoch.taken, 0),
        window=limits.tasks,
        reorder=window.held,
        reorder_bytes=window.held_bytes,
        pin=max(epoch.pin_entered - epoch.pin_left, 0),
        data=len(epoch.ready),
        finished_bytes=max(window.held_bytes + window.delivered_bytes - epoch.taken_bytes, 0),
        memory_budget=limits.effective(window.largest),
        **_slots(conductor),
    )


def _waiting(conductor: Conductor, worker: WorkerHandle) -> int:
    """Tasks in the worker's index queue, without those that were taken back."""
    return max(worker.dispatched - max(conductor.board.row(worker.id)[Word.STARTED], worker.recalled), 0)


def _workers(conductor: Conductor, usage: Usage, now: int) -> list[Worker]:
    workers = []
    for worker in sorted(conductor.roster, key=lambda each: each.id):
        row = conductor.board.row(worker.id).tolist()
        resident, processor = usage.of(worker.pid) if worker.pid else (0, 0)
        since, state = row[Word.SINCE], row[Word.STATE]
        under_way = max(now - since, 0) if since and not worker.closed else 0
        row[TIME_OF.get(state, Word.IDLE)] += under_way
        workers.append(
            Worker(
                id=worker.id,
                pid=worker.pid,
                state="retiring" if worker.leaving else "dead" if worker.closed else STATES[state],
                state_ms=under_way // 1_000_000,
                batch=row[Word.BATCH],
                index_queue=_waiting(conductor, worker),
                batches=row[Word.BATCHES],
                samples=row[Word.SAMPLES],
                sent_kib=row[Word.BYTES] >> 10,
                fetch_us=row[Word.FETCH] // 1000,
                collate_us=row[Word.COLLATE] // 1000,
                send_us=row[Word.SEND] // 1000,
                idle_ms=row[Word.IDLE] // 1_000_000,
                rss=resident,
                cpu_ms=processor,
            )
        )
    usage.keep({worker.pid for worker in workers})
    return workers
