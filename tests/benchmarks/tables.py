"""Results as tables: plain text for a terminal, Markdown for the README."""

from __future__ import annotations

from itertools import groupby

from tests.benchmarks.competitors import COMPETITORS
from tests.benchmarks.summary import Entry, Result

Row = list[str]


def plain(results: list[Result]) -> str:
    return "\n\n".join(_aligned(rows) for rows in _tables(results))


def markdown(results: list[Result]) -> str:
    return "\n\n".join(_piped(rows) for rows in _tables(results))


def _tables(results: list[Result]) -> list[list[Row]]:
    """One table for neighbours with the same columns."""
    tables = []
    for _, group in groupby(results, key=lambda result: result.case.variants):
        members = list(group)
        shown = [name for name in members[0].case.variants if any(name in one.entries for one in members)]
        header = ["case", "figure", *map(_title, shown), "target", "met"]
        tables.append([header, *(_row(result, shown) for result in members)])
    return tables


def _row(result: Result, shown: list[str]) -> Row:
    cells = [_cell(result.entries.get(variant)) for variant in shown]
    target = str(result.figure.target) if result.figure.target else ""
    met = {True: "yes", False: "no", None: ""}[result.met]
    return [result.case.name, result.figure.unit, *cells, target, met]


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    if entry.value is None:
        return "failed"
    text = _number(entry.value)
    if entry.ratio is not None:
        text += f" ({entry.ratio:.2f}×)"
    if entry.failures:
        text += f" [{entry.failures} failed]"
    return text


def _number(value: float) -> str:
    """Three significant digits, and never an exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _title(variant: str) -> str:
    return COMPETITORS[variant].title if variant in COMPETITORS else variant


def _aligned(rows: list[Row]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def _piped(rows: list[Row]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)
