"""A snapshot of a loader: read off the ledger, the pool's window and its workers' progress, without a lock.

Numbers of one snapshot may be a step of one batch apart from each other, because the engine goes on while they are
read; each by itself is right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from ..iteration.inline import InlineIterator
from ..iteration.pooled import PooledIterator
from ..pool.conductor import Conductor
from ..pool.crews.crew import Worker as PoolWorker
from ..pool.pool import Pool
from ..protocol import (
    CacheUse,
    Hang,
    LoaderState,
    Machine,
    Quarantined,
    Queues,
    SampleCost,
    SlowSample,
    Snapshot,
    Stalls,
    Tuned,
    Worker,
)  # fmt: skip
from ..usage import untold
from .bad import in_brief
from .costs import published
from .usage import Usage

if TYPE_CHECKING:
    from ..iteration.base import EpochIterator
    from .ledger import Ledger

PUBLISHED = 16
"""How many of the samples in quarantine are in a published snapshot."""


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
    cache: CacheUse | UnsetType | None,
    quarantined: list[Quarantined] | None = None,
    tuned: Tuned | None = None,
    hang: Hang | None = None,
) -> Snapshot:
    now = time.monotonic_ns()
    usage.look()
    conductor = None if pool is None else pool.conductor
    queues = None if conductor is None else _queues(conductor)
    if conductor is None or queues is None:  # the budget is looked up only then: that takes its time
        queues = Queues(memory_budget=usage.budget(memory_budget), **_slots(conductor))
    cost, slowest = _samples(ledger, iterator, conductor)
    workers = [] if conductor is None else _workers(conductor, usage, now)
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
        workers=workers,
        digest=ledger.digest.hex(),
        recoveries=ledger.recoveries,
        dropped=ledger.dropped + ledger.spans.lost,
        slowest=published(slowest) if seq else slowest,
        unknown=_unknown(conductor, usage) or UNSET,
        processors=usage.processors(),
        bad=len(quarantined or ()),
        quarantined=_shown(quarantined or [], published=seq > 0),
        tuned=tuned,
        errors=ledger.errors.summary or UNSET,
        cache=cache or UNSET,
        hang=hang or UNSET,
        glances=ledger.recording.seen or UNSET,
        hottest=ledger.hottest or UNSET,
        machines=UNSET if conductor is None else _machines(conductor) or UNSET,
    )


def _unknown(conductor: Conductor | None, usage: Usage) -> list[str]:
    """What is not known of this loader: the system does not tell it, or threads share it with training."""
    threads = conductor is not None and any(usage.of(_key(each), each.used).inside for each in conductor.roster)
    return list(dict.fromkeys([*untold(), *(["workers.rss"] if threads else [])]))


def _key(worker: PoolWorker) -> tuple[int, int]:
    return worker.pid, worker.key


def _shown(quarantined: list[Quarantined], published: bool) -> list[Quarantined]:
    """All of them here; to others the newest, without what is long."""
    if not published:
        return list(quarantined)
    return [in_brief(each) for each in quarantined[-PUBLISHED:]]


def _samples(
    ledger: Ledger, iterator: EpochIterator | None, conductor: Conductor | None
) -> tuple[SampleCost, list[SlowSample]]:
    """What the samples of the epoch under way cost, or of the last one."""
    if isinstance(iterator, PooledIterator) and conductor is not None and conductor.epoch is not None:
        return iterator.observer.sample_cost(conductor.roster.costs()), iterator.observer.slowest.recorded()
    if isinstance(iterator, InlineIterator) and not iterator.ended:
        return iterator.costs.sample_cost(), iterator.costs.slowest.recorded()
    return ledger.cost, ledger.slowest


def _slots(conductor: Conductor | None) -> dict[str, Any]:
    crews = [] if conductor is None else [crew.memory() for crew in conductor.crews]
    return {
        "slots_used": sum(memory.used for memory in crews),
        "slots_free": sum(memory.free for memory in crews),
        "slots_bytes": sum(memory.nbytes for memory in crews),
    }


def _queues(conductor: Conductor) -> Queues | None:
    """Of the epoch under way; None: there is none."""
    epoch = conductor.epoch
    if epoch is None:
        return None
    window = epoch.window
    limits = window.limits
    # Tasks of the epoch that is foreseen come after all of this one's.
    ahead = 0 if conductor.foreseen is None else conductor.foreseen.window.unfinished
    return Queues(
        index=max(sum(worker.waiting() for worker in conductor.roster) - ahead, 0),
        in_flight=max(window.unfinished + window.held + window.delivered - epoch.taken, 0),
        window=limits.tasks,
        reorder=window.held,
        reorder_bytes=window.held_bytes,
        pin=max(epoch.pin_entered - epoch.pin_left, 0),
        data=len(epoch.ready),
        finished_bytes=max(window.held_bytes + window.delivered_bytes - epoch.taken_bytes, 0),
        memory_budget=limits.effective(window.largest),
        window_reason=conductor.dispatcher.depth.reason(conductor.target),
        **_slots(conductor),
    )


def _machines(conductor: Conductor) -> list[Machine]:
    """Other machines on which workers run."""
    found = [machine for crew in conductor.crews for machine in crew.machines()]
    hosts = [machine.host for machine in found]
    return [
        Machine(
            name=each.host if hosts.count(each.host) == 1 else f"{each.host}:{each.address.rpartition(':')[2]}",
            workers=each.workers,
            processors=each.processors,
            received_kib=each.received >> 10,
            full_ms=each.full // 1_000_000,
            way_us=each.way // 1000,
            lost=each.lost,
        )
        for each in found
    ]


def _workers(conductor: Conductor, usage: Usage, now: int) -> list[Worker]:
    workers = []
    for worker in sorted(conductor.roster, key=lambda each: each.id):
        progress, used = worker.progress(now), usage.of(_key(worker), worker.used)
        workers.append(
            Worker(
                id=worker.id,
                pid=worker.pid,
                state=progress.state,
                state_ms=max(now - progress.since, 0) // 1_000_000 if progress.since else 0,
                batch=progress.batch,
                index_queue=worker.waiting(),
                batches=progress.batches,
                samples=progress.samples,
                sent_kib=progress.nbytes >> 10,
                fetch_us=progress.fetch // 1000,
                collate_us=progress.collate // 1000,
                send_us=progress.send // 1000,
                idle_ms=progress.idle // 1_000_000,
                rss=used.resident,
                cpu_ms=used.processor_ms,
                queued_ms=used.queued_ms,
            )
        )
    usage.keep({_key(worker) for worker in conductor.roster})
    return workers
