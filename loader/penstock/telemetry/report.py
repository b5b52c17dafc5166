"""A snapshot as a small table for a person."""

from __future__ import annotations

from textwrap import wrap

from ..insight.numbers import KINDS, WINDOWS
from ..insight.occupation import occupation
from ..insight.shares import of_times
from ..insight.words import NOTHING as UNKNOWN
from ..insight.words import micros, percent, size
from ..protocol import CacheUse, Snapshot, Stats, Times, Worker

WIDTH = 100
"""Letters in a line of the verdict."""


def report(snapshot: Snapshot) -> str:
    s = snapshot
    of = f" of {s.length:,}" if s.length is not None else ""
    pending = f", {s.pending} from the next epoch on" if s.pending is not None else ""
    workers = f"{_known(s, 'workers', str(len(s.workers)))} of {_known(s, 'target', str(s.target))} workers"
    samples, nbytes = _known(s, "samples", f"{s.samples:,}"), _known(s, "bytes", size(s.bytes))
    lines = [
        f"{s.state}, epoch {s.epoch}, batch {s.batch:,}{of}; {workers}{pending}",
        *_verdict(s),
        f"  yielded   {s.batches:,} batches, {samples} samples, {nbytes if s.knows('bytes') else f'{nbytes} bytes'}",
        f"  time      {_shares(s.epoch_times, told_apart=s.knows('epoch_times.reorder_stall_us'))}",
        f"  queues    {_queues(s)}",
        f"  memory    {_memory(s)}",
    ]
    if s.stalls.count:
        lines.append(f"  stalls    {s.stalls.count:,}, {s.stalls.us / 1e6:.2f} s in all")
    if s.pin.mode != "off":
        speed = s.pin.bytes / s.pin.us * 1e6 if s.pin.us else 0
        passed = f"{size(s.pin.bytes)}, {size(speed)}/s" if s.knows("pin.bytes") else UNKNOWN
        lines.append(f"  pinning   {s.pin.mode}, {passed}")
    if s.cost.count:
        which = f" (index {s.cost.max_index})" if s.cost.max_index else ""
        lines.append(
            f"  samples   p50 {micros(s.cost.p50_us)}, p95 {micros(s.cost.p95_us)}, p99 {micros(s.cost.p99_us)}, "
            f"slowest {micros(s.cost.max_us)}{which}"
        )
    if isinstance(s.cache, CacheUse):
        lines.append(f"  cache     {_cache(s.cache)}")
    if s.processors.allowed:
        lines.append(f"  runs on   {_processors(s)}")
    if s.recoveries:
        lines.append(f"  replaced  {s.recoveries} workers that died")
    if isinstance(s, Stats):
        lines.extend(f"  machine   {each.text}" for each in s.network)
    if s.workers:
        there = s.elsewhere()
        where = "  machine" if there else ""
        lines.append(
            f"  worker     pid  state          batch  batches  fetch  collate   send    rss   cpu queued blocked{where}"
        )
        named = {worker.id: there[worker.id].name if worker.id in there else "this one" for worker in s.workers}
        lines.extend(_row(s, worker) + (f"  {named[worker.id]}" if there else "") for worker in s.workers)
    return "\n".join(lines)


def _verdict(snapshot: Snapshot) -> list[str]:
    if not isinstance(snapshot, Stats) or not snapshot.verdict.verdict:
        return []
    said = snapshot.verdict
    lines = wrap(" ".join(filter(None, (said.verdict, said.sentence, said.advice))), WIDTH)
    return [f"  {'verdict' if not place else '':<10}{line}" for place, line in enumerate(lines)]


def _known(snapshot: Snapshot, name: str, text: str) -> str:
    return text if snapshot.knows(name) else UNKNOWN


def _queues(snapshot: Snapshot) -> str:
    q = snapshot.queues
    if not snapshot.knows("queues"):
        return UNKNOWN
    index, pin, data = (_known(snapshot, f"queues.{n}", str(getattr(q, n))) for n in ("index", "pin", "data"))
    why = f" ({WINDOWS[q.window_reason]})" if q.window_reason else ""
    return f"index {index}, in flight {q.in_flight} of {q.window}{why}, reorder {q.reorder}, pin {pin}, data {data}"


def _memory(snapshot: Snapshot) -> str:
    q = snapshot.queues
    if not snapshot.knows("queues.finished_bytes"):
        return UNKNOWN
    return (
        f"finished {size(q.finished_bytes)} of {size(q.memory_budget)}, "
        f"slots {size(q.slots_bytes)} ({q.slots_used} used, {q.slots_free} free)"
    )


def _shares(times: Times, told_apart: bool) -> str:
    shares = of_times(times)
    if shares is None:
        return "not started"
    words = {kind.name: kind.word for kind in KINDS}
    words["starvation"] = words["starvation"] if told_apart else "waiting"
    told = [f"{words[name]} {percent(share)}" for name, share in shares.items() if share >= 0.005]
    total = sum(getattr(times, f"{kind.name}_us") for kind in KINDS)
    return ", ".join(told) + f" of {total / 1e6:.1f} s"


def _cache(cache: CacheUse) -> str:
    asked = cache.hits + cache.misses
    hits = (
        f"{100 * cache.hits / asked:.0f} % of {asked:,} samples read, {micros(cache.saved_us)} saved"
        if asked
        else "unused"
    )
    failed = f"; takes no more: {cache.failed}" if cache.failed else ""
    return f"{hits}; {cache.samples:,} kept in {size(cache.bytes)} of {size(cache.budget)}{failed}"


def _processors(snapshot: Snapshot) -> str:
    allowed = snapshot.processors.allowed
    return f"{allowed:.3g} processor{'' if allowed == 1 else 's'} that this process may use"


def _row(snapshot: Snapshot, worker: Worker) -> str:
    seen = snapshot.knows("workers.fetch_us")
    spent = (worker.fetch_us, worker.collate_us, worker.send_us)
    fetch, collate, send = (micros(us / (worker.batches or 1)) if seen else UNKNOWN for us in spent)
    batch = worker.batch if seen else UNKNOWN
    processor, queued, blocked = _occupation(snapshot, worker)
    return (
        f"  {worker.id:>6} {worker.pid:>7}  {worker.state:<10} {batch:>9} {worker.batches:>8} "
        f"{fetch:>7} {collate:>7} {send:>7} "
        f"{size(worker.rss) if worker.rss else '–':>6} {processor:>5} {queued:>6} {blocked:>7}"
    )


def _occupation(snapshot: Snapshot, worker: Worker) -> tuple[str, str, str]:
    """Shares of the worker's time at batches, once there was enough of it beside its start."""
    busy = (worker.fetch_us + worker.collate_us + worker.send_us) / 1e3
    if busy < 500 or not snapshot.knows("workers.fetch_us") or not snapshot.knows("workers.cpu_ms"):
        return UNKNOWN, UNKNOWN, UNKNOWN
    told = snapshot.knows("workers.queued_ms")
    processor, queued, blocked = (
        f"{100 * part / busy:.0f} %" for part in occupation(busy, worker.cpu_ms, worker.queued_ms)
    )
    return (processor, queued, blocked) if told else (processor, UNKNOWN, UNKNOWN)
