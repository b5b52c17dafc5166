"""Once a minute: samples become chunks in every tier, and what had its time goes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ..settings import Retention
from ..store.batch import ROW
from ..store.samples import TIERS, Sample, regroup, single, to_rows
from ..store.space import PINNED, charge, drop

INTERVAL = 60.0
"""Seconds between two compactions."""
GRACE = 2.0
"""Seconds after a full minute in which its last samples may still come."""

ROWS_PER_CHUNK = 2000
"""Samples that are taken at a time. At the usual rate there are 300 in a minute; a loader may send many more."""

Samples = dict[int, list[Sample]]
"""Loader → its samples."""


def due(last: float, now: float) -> bool:
    """Just after each full minute: then chunks hold whole minutes, and hardly a bucket is cut in two."""
    return now // INTERVAL != last // INTERVAL and now % INTERVAL >= GRACE


def split(recent: Samples, boundary: float) -> tuple[Samples, Samples]:
    """Samples before a moment, and the others, loader by loader."""
    before = {key: [s for s in samples if s.at < boundary] for key, samples in recent.items()}
    after = {key: [s for s in samples if s.at >= boundary] for key, samples in recent.items()}
    return {k: v for k, v in before.items() if v}, {k: v for k, v in after.items() if v}


def in_parts(done: Samples, most: int) -> Iterator[Samples]:
    """Loaders in groups, each small enough for one transaction of so many bytes."""
    part: Samples = {}
    size = 0
    for key, samples in done.items():
        part[key] = samples
        size += size_of(samples)
        if size >= most:
            yield part
            part, size = {}, 0
    if part:
        yield part


def size_of(samples: list[Sample]) -> int:
    """Bytes of chunks that samples become, about: every tier has a row, and coarse buckets are three times as wide."""
    return 2 * sum(len(sample.rates) + 14 for sample in samples) + len(TIERS) * ROW


def compact(connection: sqlite3.Connection, done: Samples, rest: Samples, owners: dict[int, int], now: float) -> None:
    """Turn the log of some loaders, but for the rest, into chunks. Runs in a transaction."""
    for key, unsorted in done.items():
        samples = sorted(unsorted, key=lambda sample: sample.at)
        owner = owners.get(key, 0)
        for first in range(0, len(samples), ROWS_PER_CHUNK):
            buckets = [single(sample) for sample in samples[first : first + ROWS_PER_CHUNK]]
            rows = [
                (tier, key, rows[0].at, now, to_rows(rows), owner)
                for tier, width in enumerate(TIERS)
                for rows in (regroup(buckets, width) if width else buckets,)
            ]
            connection.executemany(
                "INSERT INTO chunks (tier, loader, start, stored, rows, owner) VALUES (?, ?, ?, ?, ?, ?)", rows
            )
            charge(connection, owner, sum(len(row[4]) for row in rows))
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS done (loader INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM done")
    connection.executemany("INSERT INTO done (loader) VALUES (?)", [(key,) for key in done])
    connection.execute("DELETE FROM recent WHERE loader IN (SELECT loader FROM done)")
    connection.executemany(
        "INSERT INTO recent (loader, at, rates) VALUES (?, ?, ?)",
        [(key, sample.at, sample.rates) for key in done for sample in rest.get(key, ())],
    )


def expire(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Drop what had its time; of runs that are pinned, not what is small. Runs in a transaction."""
    spared = f"AND loader NOT IN {PINNED}"
    for (owner,) in connection.execute("SELECT id FROM owners").fetchall():
        for tier, kept in enumerate((retention.samples, retention.ten_seconds, retention.minutes)):
            values = (owner, tier, now - kept)
            which = f"owner = ? AND tier = ? AND stored < ? {spared if tier == len(TIERS) - 1 else ''}"
            drop(connection, "chunks", owner, "rows", which, values)
        kinds = connection.execute("SELECT DISTINCT kind FROM events WHERE owner = ?", (owner,)).fetchall()
        for (kind,) in kinds:
            kept = retention.samples if kind == "spans" else retention.minutes
            values = (owner, kind, now - kept)
            which = f"owner = ? AND kind = ? AND at < ? {spared if kind != 'spans' else ''}"
            drop(connection, "events", owner, "body", which, values)
    connection.execute("DELETE FROM commands WHERE at < ?", (now - retention.minutes,))
    connection.execute("DELETE FROM run_changes WHERE at < ?", (now - retention.minutes,))
