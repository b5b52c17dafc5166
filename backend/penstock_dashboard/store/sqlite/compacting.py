"""Samples into chunks, and what had its time out of the file. Everything here runs in a transaction."""

from __future__ import annotations

import sqlite3

from ...settings import Retention
from ..compaction import Samples, chunks_of
from ..samples import TIERS
from .space import PINNED, charge, drop


def compact(connection: sqlite3.Connection, done: Samples, rest: Samples, owners: dict[int, int], now: float) -> None:
    """Turn the log of some loaders, but for the rest, into chunks."""
    for key, samples in done.items():
        owner = owners.get(key, 0)
        chunks = list(chunks_of(key, samples, owner, now))
        connection.executemany(
            "INSERT INTO chunks (tier, loader, start, stored, rows, owner) VALUES (?, ?, ?, ?, ?, ?)", chunks
        )
        charge(connection, owner, sum(len(chunk[4]) for chunk in chunks))
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS done (loader INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM done")
    connection.executemany("INSERT INTO done (loader) VALUES (?)", [(key,) for key in done])
    connection.execute("DELETE FROM recent WHERE loader IN (SELECT loader FROM done)")
    connection.executemany(
        "INSERT INTO recent (loader, at, rates) VALUES (?, ?, ?)",
        [(key, sample.at, sample.rates) for key in done for sample in rest.get(key, ())],
    )


def expire(connection: sqlite3.Connection, retention: Retention, now: float) -> None:
    """Drop what had its time; of runs that are pinned, not what is small."""
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
