"""What `penstock top` shows, from facts to lines for a screen of any size. No IO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.insight.commands import resumes_at
from penstock.insight.words import NOTHING, age, figure, plural
from penstock.protocol import LoaderRow, Session, Verdict

from ..terminal import overview, panels
from ..terminal.canvas import EMPTY, Line, Span, line, spread, wrapped
from ..terminal.clock import Offset
from ..terminal.controls import Controls
from ..terminal.facts import LIVE, LoaderFacts, state_of
from ..terminal.feed import Status

HELP = (
    ("↑ ↓  j k", "choose a loader; in a loader: the workers that do not fit"),
    ("Enter", "open the loader; in a loader: apply the number of workers"),
    ("Esc", "back; after + or -: leave the number of workers as it is"),
    ("p", "pause or resume"),
    ("+ -", "one worker more, one less; nothing is asked before Enter (or a)"),
    ("?", "this list"),
    ("q", "quit"),
)


@dataclass(frozen=True)
class Surroundings:
    """What all screens need to know."""

    columns: int
    rows: int
    colour: bool
    now: float
    clock: Offset
    status: Status
    reason: str
    """Why there is no connection."""
    session: Session | None

    @property
    def connected(self) -> bool:
        return self.status == "open"


def overview_screen(around: Surroundings, rows: Sequence[LoaderRow], chosen: str, notice: str) -> list[Line]:
    live = [row for row in rows if state_of(row.presence, row.state) in LIVE]
    runs = len({row.identity.run for row in rows})
    rate = f"{figure(sum(row.rates.batches for row in live))} batches/s"
    told = f"  {plural(len(rows), 'loader')} in {plural(runs, 'run')} · {len(live)} live · {rate}"
    lines = [spread(line(Span("Penstock", "bold"), Span(told, "dim")), _badge(around), around.columns), EMPTY]
    if not rows:
        lines += _nobody(around)
    else:
        found = overview.table(rows, lambda row: around.clock.age(row.seen, around.now), around.columns, chosen)
        room = max(1, around.rows - 6)
        place = next((number for number, row in enumerate(rows) if row.id == chosen), 0)
        first = max(0, min(place - room // 2, len(rows) - room))
        lines += [found[0], *found[1 + first : 1 + first + room]]
        if len(rows) > room:
            lines.append(line(Span(f"  {first + 1} to {first + room} of {len(rows)}", "dim")))
    return _with_footer(around, lines, notice, "↑ ↓ choose   Enter open   ? help   q quit")


def _nobody(around: Surroundings) -> list[Line]:
    if around.session is None:
        return [line("Connecting …")]
    return [
        line("No loader has reported yet. Start a training with"),
        line(Span("  PENSTOCK_URL=<this dashboard's address>", "bold")),
        line("in its environment, or with ", Span("DataLoader(..., monitor=True)", "bold"), "."),
    ]


def loader_screen(
    around: Surroundings,
    facts: LoaderFacts,
    controls: Controls,
    first_worker: int,
    notice: str,
) -> list[Line]:
    """Sections from top to bottom; workers and events share the rows that the others leave."""
    columns = around.columns
    silence = data_age(around, facts)
    stale = _is_stale(around, facts, silence)
    sections = [panels.header(facts, _badge(around, facts, silence, stale), columns)]
    tall = around.rows >= 34
    verdict = facts.verdict
    if verdict is not None:
        shown = _old_news(around, verdict, silence) if stale and facts.presence != "lost" else verdict
        sections.append(panels.verdict(shown, columns, 6 if tall else 4))
    elif facts.gone:
        sections.append([line(Span("Unknown. ", "bold bad"), "The dashboard does not know this loader (any more).")])
    else:
        sections.append([line(Span("Waiting for the first data …", "dim"))])
    sections.append(control_lines(around, facts, controls))
    if facts.snapshot is not None:
        limiting = None if verdict is None or stale else verdict.stage
        sections += [panels.times(facts, columns, around.colour), panels.pipeline(facts, limiting, columns)]
    spaced = tall or sum(map(len, sections)) + len(sections) + 13 <= around.rows
    fixed = [each for section in sections for each in ([*section, EMPTY] if spaced else section)]
    rest = around.rows - len(fixed) - 1  # the last line is for the keys
    lower = _lower(facts, rest, first_worker, spaced)
    keys = "p pause   + - workers   Enter apply   Esc back   ? help   q quit"
    return _with_footer(around, [*fixed, *lower], notice, keys)


def _lower(facts: LoaderFacts, rows: int, first_worker: int, spaced: bool) -> list[Line]:
    """Workers, what samples cost, and what happened last."""
    if facts.snapshot is None:
        return []
    costs = [*panels.machines(facts), *panels.costs(facts)]
    gaps = 2 if spaced else 0
    for_events = min(max(1, len(facts.events)), 3)
    for_workers = max(2, rows - len(costs) - for_events - gaps)
    workers = panels.workers(facts, for_workers, first_worker)
    events = panels.events(facts, rows - len(workers) - len(costs) - gaps)
    between = [EMPTY] if spaced else []
    return [*workers, *costs, *between, *events]


def control_lines(around: Surroundings, facts: LoaderFacts, controls: Controls) -> list[Line]:
    """The dial; what was asked, what is under way, and what came of it."""
    off = controls.off(around.session, around.connected)
    snapshot = facts.snapshot
    there = "Workers"
    if snapshot is not None and snapshot.pending is not None:  # an iterable dataset is sharded for the whole epoch
        there = f"Workers {snapshot.target}, from the next epoch on"
    known = snapshot is None or snapshot.knows("target")
    now = Span(f"{there} {controls.target if known else NOTHING}", "bold")
    if controls.changed and (controls.mine or controls.sending):
        dial = line(now, Span(f" → {controls.shown}", "bold accent"), Span("   applying …", "dim"))
    elif controls.changed:
        dial = line(now, Span(f" → {controls.shown}", "bold accent"), "   Enter applies, Esc takes it back")
    else:
        again = "p resumes" if controls.paused else "p pauses"
        dial = line(now, Span("" if off else f"   + or - chooses another number, {again}", "dim"))
    said = _outcome(around, facts, controls)
    lines: list[Line] = [dial, *(wrapped(said, around.columns, 2) if said else [])]
    if off:
        lines += wrapped([Span(off, "warn")], around.columns, 2)
    return lines


def _outcome(around: Surroundings, facts: LoaderFacts, controls: Controls) -> list[Span]:
    if controls.problem:
        return [Span("Refused.", "bold bad"), Span(controls.problem)]
    if controls.sending:
        return [Span("Asking …", "bold")]
    if not facts.commands:
        return [] if controls.off(around.session, around.connected) else [Span("Nothing has been asked yet.", "dim")]
    latest = facts.commands[-1]
    tone = {"done": "bold good", "failed": "bold bad"}.get(latest.phase, "bold")
    return [
        Span(f"{latest.head}:", tone),
        Span(f"{latest.text}."),
        Span(_change(facts)),
        Span(_resumes(around, facts, controls)),
    ]


def _change(facts: LoaderFacts) -> str:
    """What the last resize did to throughput."""
    latest = facts.commands[-1]
    if latest.action != "resize" or latest.state != "applied":
        return ""
    receipt = facts.receipt(latest.id)
    return "" if receipt is None else f"{receipt.text}."


def _resumes(around: Surroundings, facts: LoaderFacts, controls: Controls) -> str:
    at = resumes_at(facts.commands) if controls.paused else None
    if at is None:
        return ""
    left = -_signed_age(around, at)
    return f"Resumes by itself in {age(left)}." if left > 0 else ""


def _signed_age(around: Surroundings, at: float) -> float:
    """Like an age, but negative for what is still to come."""
    hour = 3600.0 * 24
    return around.clock.age(at - hour, around.now) - hour


def help_screen(around: Surroundings) -> list[Line]:
    lines: list[Line] = [line(Span("Keys", "bold")), EMPTY]
    lines += [line(Span(f"  {keys:<10}", "bold"), about) for keys, about in HELP]
    lines += [EMPTY, line(Span("The same keys work on the dashboard's page of a loader (there, a applies).", "dim"))]
    return _with_footer(around, lines, "", "any key goes back")


def data_age(around: Surroundings, facts: LoaderFacts) -> float:
    return math.nan if facts.frame is None else around.clock.age(facts.frame.at, around.now)


def _is_stale(around: Surroundings, facts: LoaderFacts, silence: float) -> bool:
    snapshot, detail = facts.snapshot, facts.detail
    if not around.connected:
        return True
    if facts.presence == "finished" or (snapshot is not None and snapshot.state == "closed"):
        return False
    interval = 0.2 if detail is None else detail.interval_us / 1e6
    return facts.presence == "lost" or silence > max(1.5, 4 * interval)


def _old_news(around: Surroundings, verdict: Verdict, silence: float) -> Verdict:
    what = "No new data." if around.connected else "Not connected."
    why = "The loader has fallen silent." if around.connected else "This screen reconnects by itself."
    before = f"Before that: {verdict.verdict.lower().removesuffix('.')}."
    return Verdict("warn", what, f"What is shown is {age(silence)} old. {why} {before}")


def _badge(
    around: Surroundings, facts: LoaderFacts | None = None, silence: float = math.nan, stale: bool = False
) -> Line:
    if not around.connected:
        return line(Span("not connected, trying again", "bold bad"))
    if facts is not None and facts.presence in ("finished", "lost"):
        return line(Span(facts.presence, "bold bad" if facts.presence == "lost" else "bold"))
    if math.isnan(silence):
        return line(Span("live", "good"))
    return line(Span("silent" if stale else "live", "warn" if stale else "good"), Span(f" {age(silence)} old", "dim"))


def _with_footer(around: Surroundings, lines: Sequence[Line], notice: str, keys: str) -> list[Line]:
    """The keys at the bottom; above them what has to be said, which may take the room of the last line."""
    said = notice or ("" if around.connected else around.reason) or (around.session.warning if around.session else "")
    body = list(lines[: around.rows - (2 if said else 1)])
    body += [EMPTY] * (around.rows - len(body) - (2 if said else 1))
    told: list[Line] = [line(Span(said, "warn"))] if said else []
    return [*body, *told, line(Span(keys, "dim"))]
