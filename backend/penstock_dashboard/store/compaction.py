"""Once a minute: samples become chunks in every tier, and what is too old, or too much, goes."""

from __future__ import annotations

import sqlite3

from ..settings import Retention
from ..store.samples import TIERS, Sample, regroup, single, to_rows

INTERVAL = 60.0
"""Seconds between two compactions."""
GRACE = 2.0
"""Seconds after a full minute in which its last samples may still come."""
MOST_RECENT = 120_000
"""Samples of all loaders that may wait for one."""


def due(last: float, now: float) -> bool:
    """Just after each full minute: then chunks hold whole minutes, and hardly a bucket is cut in two."""
    return now // INTERVAL != last // INTERVAL and now % INTERVAL >= GRACE


def split(recent: dict[int, list[Sample]], boundary: float) -> tuple[dict[int, list[Sample]], dict[int, list[Sample]]]:
    """Samples before a moment, and the others, loader by loader."""
    before = {key: [s for s in samples if s.at < boundary] for key, samples in recent.items()}
    after = {key: [s for s in samples if s.at >= boundary] for key, samples in recent.items()}
    return {k: v for k, v in before.items() if v}, {k: v for k, v in after.items() if v}


def compact(
    connection: sqlite3.Connection,
    done: dict[int, list[Sample]],
    rest: dict[int, list[Sample]],
    retention: Retention,
    now: float,
) -> None:
    """Turn the log, but for the rest, into chunks, and drop what had its time. Runs in a transaction."""
    for key, samples in done.items():
        buckets = sorted((single(sample) for sample in samples), key=lambda bucket: bucket.at)
        connection.executemany(
            "INSERT INTO chunks (tier, loader, start, stored, rows) VALUES (?, ?, ?, ?, ?)",
            [
                (tier, key, rows[0].at, now, to_rows(rows))
                for tier, width in enumerate(TIERS)
                for rows in (regroup(buckets, width) if width else buckets,)
            ],
        )
    connection.execute("DELETE FROM recent")
    connection.executemany(
        "INSERT INTO recent (loader, at, rates) VALUES (?, ?, ?)",
        [(key, sample.at, sample.rates) for key, samples in rest.items() for sample in samples],
    )
    for tier, kept in enumerate((retention.samples, retention.ten_seconds, retention.minutes)):
        connection.execute("DELETE FROM chunks WHERE tier = ? AND stored < ?", (tier, now - kept))
    for (kind,) in connection.execute("SELECT DISTINCT kind FROM events").fetchall():
        kept = retention.samples if kind == "spans" else retention.minutes
        connection.execute("DELETE FROM events WHERE kind = ? AND at < ?", (kind, now - kept))
    connection.execute("DELETE FROM commands WHERE at < ?", (now - retention.minutes,))
    shrink(connection, retention.max_bytes)


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of pages in use; free ones are filled again before the file grows."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def shrink(connection: sqlite3.Connection, most: int) -> None:
    """Drop the oldest quarter of what is bulky and fine-grained; coarser records only if that is not
    enough.
    """
    victims = (
        ("events", "id", "kind = 'spans'"),
        ("chunks", "n", "tier = 0"),
        ("chunks", "n", "tier = 1"),
        ("events", "id", "1"),
        ("chunks", "n", "1"),
    )
    for table, number, which in victims:
        for _ in range(8):
            if used_bytes(connection) <= most:
                break
            first, last = connection.execute(
                f"SELECT min({number}), max({number}) FROM {table} WHERE {which}"
            ).fetchone()
            if first is None:
                break
            connection.execute(f"DELETE FROM {table} WHERE {which} AND {number} <= ?", (first + (last - first) // 4,))
    connection.execute("PRAGMA incremental_vacuum(4096)").fetchall()
