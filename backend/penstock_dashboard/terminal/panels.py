"""The parts of a loader's screen, each from facts to lines."""

from __future__ import annotations

from collections.abc import Callable

from penstock.insight.numbers import KINDS, WINDOWS, alive
from penstock.insight.words import NOTHING, clock, count, duration, figure, micros, percent, percents, plural, size
from penstock.protocol import Config, Stage, Verdict

from ..terminal.canvas import Line, Span, cut, left, line, right, spread, width, wrapped
from ..terminal.facts import LoaderFacts, state_of
from ..terminal.overview import STATES
from ..terminal.targets import name_of

GLYPHS = {
    "compute": "#",
    "starvation": "!",
    "reorder_stall": "%",
    "pin_wait": "=",
    "paused": ".",
    "startup": "+",
    "sampler": "*",
}
"""Without colours the kinds of time are told apart by these."""
STAGES: dict[Stage, tuple[str, str]] = {
    "sampler": ("Sampler", "Sampler"),
    "index": ("Index queues", "Index"),
    "workers": ("Workers", "Workers"),
    "reorder": ("Reorder buffer", "Reorder"),
    "pin": ("Pin stage", "Pin"),
    "data": ("Data queue", "Data"),
    "training": ("Training", "Training"),
}
"""Stage → its name, and the short one for narrow screens."""
UNSEEN: dict[Stage, str] = {
    "sampler": "queues.in_flight",
    "index": "queues.index",
    "workers": "workers",
    "reorder": "queues.reorder",
    "pin": "pin.bytes",
    "data": "queues.data",
}
"""Stage → the field without which there is nothing to say of it."""
WIDE = 140
"""From this width on, stages have their full names and notes."""
PINNING = {"accelerator": "pinned copy", "mlock": "page-locked", "none": "not possible here", "off": "not asked for"}


def header(facts: LoaderFacts, badge: Line, columns: int) -> list[Line]:
    """Who this loader is, and how far it has come."""
    if facts.detail is None:
        return [spread(line(Span(facts.id, "bold")), badge, columns)]
    row, config = facts.detail.row, facts.detail.config
    who = f"  rank {row.identity.rank} of {row.identity.world_size} · {row.identity.host} · pid {row.identity.pid}"
    lines = [spread(line(Span(name_of(row), "bold"), Span(who, "dim")), badge, columns)]
    snapshot = facts.snapshot
    if snapshot is None:
        return lines
    state = state_of(facts.presence, snapshot.state)
    place = f"  epoch {count(snapshot.epoch)}, batch {count(snapshot.batch)}"
    rate = f"   {figure(facts.recent.batches)} batches/s" if state in ("running", "paused") else ""
    start = line(Span(state, f"bold {STATES.get(state, 'plain')}"), place)
    end: Line = []
    if snapshot.length:
        done = min(1.0, snapshot.batch / snapshot.length)
        speed = facts.recent.batches
        left_over = (
            f", {duration((snapshot.length - snapshot.batch) / speed)} left" if speed and state == "running" else ""
        )
        start = line(*start, f" of {count(snapshot.length)}")
        bar = [_progress(done, columns // 6), Span(" ")] if columns >= 100 else []
        end = line(*bar, Span(f"{percent(done)}{left_over}", "dim"))
    lines.append(spread(line(*start, rate), end, columns))
    if columns >= 100:
        made = [config.dataset, f"batch size {count(config.batch_size)}" if config.batch_size else "", config.sampler]
        made += [config.start_method, f"{watched_kind(config)}, watched" if config.engine == "torch" else ""]
        if snapshot.recoveries:
            made.append(f"{plural(snapshot.recoveries, 'worker')} replaced")
        lines.append(line(Span(" · ".join(filter(None, made)), "dim")))
    return lines


def _progress(done: float, columns: int) -> Span:
    full = round(done * columns)
    return Span("━" * full + "─" * (columns - full), "accent")


def verdict(said: Verdict, columns: int, most: int) -> list[Line]:
    """What limits, in words."""
    parts = [Span(said.verdict, f"bold {said.tone}"), Span(said.sentence), Span(said.advice, "bold")]
    return wrapped(parts, columns, most)


def times(facts: LoaderFacts, columns: int, colour: bool) -> list[Line]:
    """Where the training thread's time went lately, or in the last epoch: a bar, and the kinds with their shares."""
    shares = facts.shares
    if shares is None:
        return [line(Span("Where the time goes: no epoch is under way.", "dim"))]
    values = [shares[kind.name] for kind in KINDS]
    bar: list[Span] = []
    start = 0
    total = 0.0
    for kind, value in zip(KINDS, values, strict=True):
        total += value
        end = round(total * columns)
        bar.append(Span(("█" if colour else GLYPHS[kind.name]) * (end - start), kind.name))
        start = end
    legend: list[Line] = [[]]
    snapshot = facts.snapshot
    for kind, share in zip(KINDS, percents(values), strict=True):
        known = snapshot is None or snapshot.knows(f"times.{kind.name}_us")
        text = f" {kind.word} {share} %" if known else f" {kind.word} {NOTHING}"
        entry = [Span("█" if colour else GLYPHS[kind.name], kind.name), Span(text, "plain" if share else "dim")]
        used = sum(width(text) for text, _ in legend[-1])
        if used and used + 3 + width(entry[1].text) + 1 > columns:
            legend.append([])
        gap = [Span("   ")] if legend[-1] else []
        legend[-1] = [*legend[-1], *gap, *entry]
    return [bar, *legend]


def pipeline(facts: LoaderFacts, limiting: Stage | None, columns: int) -> list[Line]:
    """The way of a batch, stage by stage: what waits in each, and which one limits."""
    snapshot = facts.snapshot
    if snapshot is None:
        return []
    queues, rates, workers = snapshot.queues, facts.recent, alive(snapshot)
    handed, knows = snapshot.batch + queues.in_flight, snapshot.knows
    step = micros(rates.compute / rates.batches * 1e6) if rates.batches > 0 else NOTHING
    pinned = snapshot.pin.mode != "off"
    cells: dict[Stage, tuple[str, str]] = {
        "sampler": (count(handed), f"of {count(snapshot.length)} tasks" if snapshot.length else "tasks handed out"),
        "index": (count(queues.index), f"{count(queues.in_flight)} of {count(queues.window)} in flight"),
        "workers": _busy(facts, rates.busy, workers),
        "reorder": (count(queues.reorder), size(queues.reorder_bytes) if queues.reorder_bytes else "nothing held back"),
        "pin": (f"{size(rates.pin_bytes)}/s" if pinned else "off", PINNING[snapshot.pin.mode]),
        "data": (count(queues.data), "batch ready" if queues.data == 1 else "batches ready"),
        "training": (step, "a step"),
    }
    for stage, field in UNSEEN.items():
        if not knows(field):
            note = PINNING[snapshot.pin.mode] if stage == "pin" and knows("pin.mode") else "not known"
            cells[stage] = (NOTHING, note)
    wide = columns >= WIDE
    each = columns // len(cells)
    gap = 2 if each >= 10 else 1
    rows: list[list[Span]] = [[], [], []]
    for stage, (value, note) in cells.items():
        name = STAGES[stage][0 if wide else 1]
        limits = stage == limiting
        style = "plain" if not limits else "bold good" if stage == "training" else "bold bad"
        texts = (f"▶{name}" if limits else name, value, note)
        for place, text in enumerate(texts):
            arrow = "→ " if gap == 2 and place == 0 and stage != "training" else " " * gap
            dim = style if limits else ("dim" if place != 1 else "plain")
            shown = left(text, each - gap)
            rows[place] += [Span(shown, dim), Span(arrow, "dim")]
    if wide:
        return list(rows)
    if not knows("queues"):
        return list(rows[:2])
    why = f" ({WINDOWS[queues.window_reason]})" if queues.window_reason else ""
    note = f"in flight {count(queues.in_flight)} of {count(queues.window)}{why}"
    held = f"finished {size(queues.finished_bytes)} of {size(queues.memory_budget)}"
    return [*rows[:2], line(Span(f"{note} · {held}" if queues.memory_budget else note, "dim"))]


TableColumn = tuple[str, int]
WORKERS: tuple[TableColumn, ...] = (
    ("#", 3),
    ("pid", 8),
    ("state", 18),
    ("batch", 9),
    ("batch/s", 8),
    ("fetch", 7),
    ("collate", 8),
    ("send", 6),
    ("CPU", 6),
    ("RSS", 7),
)


def watched_kind(config: Config) -> str:
    """What is watched. Loaders older than protocol 2.1 do not say; they watch nothing but torch's."""
    return config.kind or "torch DataLoader"


def _busy(facts: LoaderFacts, busy: float, workers: int) -> tuple[str, str]:
    if not workers:
        return "in line", "no workers"
    if facts.detail is not None and facts.detail.config.engine == "torch":
        return str(workers), "not seen from outside"
    return f"{figure(min(busy, workers))}/{workers}", "busy"


def workers(facts: LoaderFacts, rows: int, first: int) -> list[Line]:
    """A head and a line per worker, as many as fit; times in ms a batch."""
    found = facts.workers
    if not found:
        if facts.snapshot is None:
            return []
        known = facts.snapshot.knows("workers")
        return [line(Span("No worker processes." if known else "Workers: not known from outside.", "dim"))]
    there = {} if facts.snapshot is None else facts.snapshot.elsewhere()
    head = line(
        Span("".join(_cell(title, title, columns) for title, columns in WORKERS), "dim"),
        Span("  machine" if there else "", "dim"),
    )
    room = max(1, rows - 1)
    if len(found) > room:
        first = min(first, len(found) - room + 1)
        room = max(1, room - 1)
    shown = found[first : first + room]
    timed = facts.snapshot is None or facts.snapshot.knows("workers.state_ms")
    lines: list[Line] = [head]
    for worker, did in shown:
        values = (
            str(worker.id),
            str(worker.pid),
            f"{worker.state} {micros(1000 * worker.state_ms) if worker.state_ms else '< 1 ms'}"
            if timed
            else worker.state,
            NOTHING if worker.batch < 0 else count(worker.batch),
            _or_nothing(did.batches, figure),
            _milliseconds(did.fetch_us),
            _milliseconds(did.collate_us),
            _milliseconds(did.send_us),
            _or_nothing(did.processor, percent),
            size(worker.rss) if worker.rss else "–",
        )
        style = "bad" if worker.state == "dead" else "dim" if worker.state in ("retiring", "idle") else "plain"
        cells = [_cell(title, text, columns) for (title, columns), text in zip(WORKERS, values, strict=True)]
        where = f"  {there[worker.id].name if worker.id in there else 'this one'}" if there else ""
        lines.append(line(Span("".join(cells) + where, style)))
    if len(shown) < len(found):
        which = f"workers {first} to {first + len(shown) - 1} of {len(found)}; ↑ ↓ for the others"
        lines.append(line(Span(f"  {which}", "dim")))
    return lines


def machines(facts: LoaderFacts) -> list[Line]:
    """A line for each other machine that makes batches."""
    found = [] if facts.frame is None else facts.frame.machines
    return [line(Span("Machine ", "dim"), each.text) for each in found]


def costs(facts: LoaderFacts) -> list[Line]:
    """What single samples take."""
    cost = None if facts.snapshot is None else facts.snapshot.cost
    if cost is None or not cost.count:
        return []
    quantiles = f"p50 {micros(cost.p50_us)}, p95 {micros(cost.p95_us)}, p99 {micros(cost.p99_us)}"
    worst = f"slowest {micros(cost.max_us)}" + (f" (sample {cost.max_index})" if cost.max_index else "")
    return [line(Span("Samples: ", "dim"), f"{quantiles}, {worst}")]


def events(facts: LoaderFacts, rows: int) -> list[Line]:
    found = facts.events[: max(0, rows)]
    if not found:
        return [line(Span("Nothing has happened yet.", "dim"))] if rows > 0 else []
    return [line(Span(f"{clock(each.at)} ", "dim"), Span(each.text, each.tone)) for each in found]


def _cell(title: str, text: str, columns: int) -> str:
    if title in ("#", "pid", "state"):
        return left(cut(text, columns - 1), columns)
    return right(text, columns)


def _or_nothing(value: float | None, text: Callable[[float], str]) -> str:
    return NOTHING if value is None else text(value)


def _milliseconds(us: float | None) -> str:
    return NOTHING if us is None else figure(us / 1000)
