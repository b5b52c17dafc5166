"""All loaders as a table: for `penstock status`, and the first screen of `penstock top`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.insight.shares import HARMLESS
from penstock.insight.slowness import SEVERE
from penstock.insight.verdict import LIMITS
from penstock.insight.words import NOTHING, age, count, figure, micros, percent
from penstock.protocol import LoaderRow

from ..terminal.canvas import Line, Span, cut, left, right
from ..terminal.facts import LIVE, state_of, workers_known
from ..terminal.targets import name_of

STATES = {"running": "good", "failed": "bad", "lost": "bad", "stale": "warn", "paused": "warn"}


@dataclass(frozen=True)
class Column:
    """One column of the table of loaders."""

    title: str
    width: int
    text: Callable[[LoaderRow, float], str]
    style: Callable[[LoaderRow], str] = lambda _: "plain"
    leads: bool = False
    """Set to the left edge."""
    from_width: int = 0
    """Shown from this width of the screen on."""


def limit_of(row: LoaderRow) -> str:
    """What limits it, in a word or two."""
    return LIMITS[row.verdict.limit] if _state(row) in ("running", "failed") else NOTHING


def _workers(row: LoaderRow, _: float) -> str:
    if not workers_known(row):
        return NOTHING
    moving = row.target != row.workers and _state(row) in LIVE
    return f"{row.workers} → {row.target}" if moving else str(row.workers)


def _rate(row: LoaderRow, _: float) -> str:
    return figure(row.rates.batches) if _state(row) in LIVE else NOTHING


def _waiting(row: LoaderRow, _: float) -> str:
    share = row.waiting
    return NOTHING if share is None else percent(share)


def _waiting_style(row: LoaderRow) -> str:
    share = row.waiting or 0.0
    return "plain" if share < HARMLESS else "bad" if share >= SEVERE else "warn"


def progress(row: LoaderRow) -> str:
    place = f"batch {count(row.batch)}" if row.length is None else f"{count(row.batch)} of {count(row.length)}"
    return f"epoch {count(row.epoch)}, {place}"


COLUMNS = (
    Column("State", 8, lambda row, _: _state(row), lambda row: STATES.get(_state(row), "plain"), leads=True),
    Column("Progress", 26, lambda row, _: progress(row), lambda _: "dim", leads=True, from_width=110),
    Column("Workers", 7, _workers),
    Column("Batches/s", 9, _rate),
    Column("Waiting", 7, _waiting, _waiting_style),
    Column("Limit", 18, lambda row, _: limit_of(row), leads=True),
    Column("Host", 14, lambda row, _: row.identity.host, lambda _: "dim", leads=True, from_width=130),
    Column("Seen", 6, lambda _, silence: "now" if silence < 5 else age(silence), lambda _: "dim"),
)


def _state(row: LoaderRow) -> str:
    return state_of(row.presence, row.state)


def table(
    rows: Sequence[LoaderRow], silence: Callable[[LoaderRow], float], columns: int | None, chosen: str = ""
) -> list[Line]:
    """A head and a line per loader. `columns`: of the screen; None: as wide as it needs to be."""
    widest = max((len(name_of(row)) for row in rows), default=6)
    shown = [column for column in COLUMNS if columns is None or columns >= column.from_width]
    taken = sum(column.width + 2 if column.leads else column.width + 1 for column in shown)
    room = widest if columns is None else max(12, min(widest, columns - taken - 2))
    head = [Span(f"  {left('Loader', room)}", "dim")]
    head += [Span(_padded(column, column.title), "dim") for column in shown]
    lines: list[Line] = [head]
    for row in rows:
        here = row.id == chosen
        line = [Span(f"{'› ' if here else '  '}{left(_short(name_of(row), room), room)}", "chosen" if here else "bold")]
        line += [Span(_padded(column, column.text(row, silence(row))), column.style(row)) for column in shown]
        lines.append(line)
    return lines


def notices(rows: Sequence[LoaderRow]) -> list[Line]:
    """A line for each loader that met an error, or whose training waits unusually long for one batch."""
    lines: list[Line] = []
    for row in rows:
        if row.error:
            more = f" (and {count(row.errors - 1)} before)" if row.errors > 1 else ""
            lines.append([Span(f"  {name_of(row)}: ", "bold"), Span(f"{row.error}{more}", "bad")])
        elif row.hang_us and _state(row) in LIVE:
            waits = f"training has waited {micros(row.hang_us)} for one batch"
            lines.append([Span(f"  {name_of(row)}: ", "bold"), Span(waits, "bad")])
    return lines


def _short(name: str, most: int) -> str:
    """Long names of runs give way in the middle: what follows them tells loaders of one run apart."""
    run, _, rest = name.partition("/")
    return name if len(name) <= most else f"{cut(run, max(4, most - len(rest) - 1))}/{rest}"


def _padded(column: Column, text: str) -> str:
    return f"  {left(text, column.width)}" if column.leads else f" {right(text, column.width)}"
