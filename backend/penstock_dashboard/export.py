"""History, events and bad samples as tables for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from msgspec.json import decode, encode
from msgspec.structs import replace
from penstock.insight.rates import FIELDS
from penstock.protocol import History, ProfilePart, Quarantined, Spans

from .named import to_named
from .store import EventRecord
from .viewer import LiveEvent, in_words

CSV = "text/csv; charset=utf-8"
ARRAYS: dict[str, type[Spans | ProfilePart]] = {"spans": Spans, "profile": ProfilePart}
"""Kinds of events that are stored with arrays in them."""


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
        ["id", "loader", "received", "kind", "text", "event"],
        ([r.id, _safe(r.loader), r.at, r.kind, _safe(in_words(r).text), _named(r).decode()] for r in records),
    )


def events_json(records: list[EventRecord]) -> bytes:
    """A list of `StoredEvent`, with names for everything."""
    return b"[" + b",".join(LiveEvent(replace(record, body=_named(record))).encoded for record in records) + b"]"


def _named(record: EventRecord) -> bytes:
    """An event as it is sent over HTTP: those that hold arrays have names instead."""
    kind = ARRAYS.get(record.kind)
    return record.body if kind is None else encode(to_named(decode(record.body, type=kind)))


def quarantine_csv(samples: list[Quarantined]) -> bytes:
    return _table(
        ["index", "where", "error", "times", "epoch", "batch"],
        ([_safe(s.index), s.where, _safe(s.error), s.times, s.epoch, s.batch] for s in samples),
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
