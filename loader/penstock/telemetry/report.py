"""A snapshot as a small table for a person."""

from __future__ import annotations

from ..protocol import Snapshot, Times, Worker


def report(snapshot: Snapshot) -> str:
    s, q = snapshot, snapshot.queues
    of = f" of {s.length:,}" if s.length is not None else ""
    pending = f", {s.pending} from the next epoch on" if s.pending is not None else ""
    lines = [
        f"{s.state}, epoch {s.epoch}, batch {s.batch:,}{of}; {len(s.workers)} of {s.target} workers{pending}",
        f"  yielded   {s.batches:,} batches, {s.samples:,} samples, {size(s.bytes)}",
        f"  time      {_shares(s.epoch_times)}",
        f"  queues    index {q.index}, in flight {q.in_flight} of {q.window}, reorder {q.reorder}, "
        f"pin {q.pin}, data {q.data}",
        f"  memory    finished {size(q.finished_bytes)} of {size(q.memory_budget)}, "
        f"slots {size(q.slots_bytes)} ({q.slots_used} used, {q.slots_free} free)",
    ]
    if s.stalls.count:
        lines.append(f"  stalls    {s.stalls.count:,}, {s.stalls.us / 1e6:.2f} s in all")
    if s.pin.mode != "off":
        speed = s.pin.bytes / s.pin.us * 1e6 if s.pin.us else 0
        lines.append(f"  pinning   {s.pin.mode}, {size(s.pin.bytes)}, {size(int(speed))}/s")
    if s.cost.count:
        which = f" (index {s.cost.max_index})" if s.cost.max_index else ""
        lines.append(
            f"  samples   p50 {span(s.cost.p50_us)}, p95 {span(s.cost.p95_us)}, p99 {span(s.cost.p99_us)}, "
            f"slowest {span(s.cost.max_us)}{which}"
        )
    if s.recoveries:
        lines.append(f"  replaced  {s.recoveries} workers that died")
    if s.workers:
        lines.append("  worker     pid  state          batch  batches  fetch  collate   send    rss")
        lines.extend(_row(worker) for worker in s.workers)
    return "\n".join(lines)


def size(nbytes: int) -> str:
    """Bytes for a person."""
    amount = float(nbytes)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def span(us: float) -> str:
    """A duration for a person."""
    if us < 1000:
        return f"{us:.0f} µs"
    if us < 1_000_000:
        return f"{us / 1000:.3g} ms"
    return f"{us / 1e6:.3g} s"


def _shares(times: Times) -> str:
    parts = {
        "compute": times.compute_us,
        "starvation": times.starvation_us,
        "reorder stall": times.reorder_stall_us,
        "pin wait": times.pin_wait_us,
        "paused": times.paused_us,
        "startup": times.startup_us,
        "sampler": times.sampler_us,
    }
    total = sum(parts.values())
    if not total:
        return "not started"
    shares = [f"{name} {100 * us / total:.0f} %" for name, us in parts.items() if us / total >= 0.005]
    return ", ".join(shares) + f" of {total / 1e6:.1f} s"


def _row(worker: Worker) -> str:
    count = worker.batches or 1
    return (
        f"  {worker.id:>6} {worker.pid:>7}  {worker.state:<10} {worker.batch:>9} {worker.batches:>8} "
        f"{span(worker.fetch_us / count):>7} {span(worker.collate_us / count):>7} {span(worker.send_us / count):>7} "
        f"{size(worker.rss) if worker.rss else '–':>6}"
    )
