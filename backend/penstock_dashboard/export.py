"""History and events as tables for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from penstock.insight.rates import FIELDS
from penstock.protocol import History

from .store import EventRecord

CSV = "text/csv; charset=utf-8"


def history_csv(history: History) -> bytes:
    """One line per bucket: its middle (Unix time), every rate, and where buckets have several samples, the
    extremes.
    """
    banded = bool(history.low)
    names = [*FIELDS]
    columns = [history.mean[name] for name in FIELDS]
    if banded:
        for suffix, part in (("low", history.low), ("high", history.high)):
            names.extend(f"{name}_{suffix}" for name in FIELDS)
            columns.extend(part[name] for name in FIELDS)
    return _table(["at", *names], zip(history.at, *columns, strict=True))


def events_csv(records: list[EventRecord]) -> bytes:
    return _table(
        ["id", "loader", "received", "kind", "event"],
        ([r.id, _safe(r.loader), r.at, r.kind, r.body.decode()] for r in records),
    )


def _table(head: list[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue().encode()


def _safe(text: str) -> str:
    """A name that a spreadsheet would take for a formula is quoted."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
