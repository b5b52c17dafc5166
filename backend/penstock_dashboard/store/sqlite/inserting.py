"""Writing records into the file. Everything here runs in a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ..batch import Batch, LoaderRecord, RunChangeStored, RunPlace
from .space import charge


def insert_loaders(connection: sqlite3.Connection, records: Sequence[LoaderRecord]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO loaders (key, id, hello, snapshot, presence, seen, owner) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(r.key, r.id, r.hello, r.snapshot, r.presence, r.seen, r.owner) for r in records],
    )


def insert(connection: sqlite3.Connection, batch: Batch) -> None:
    connection.executemany(
        "INSERT INTO recent (loader, at, rates) VALUES (?, ?, ?)",
        [(key, sample.at, sample.rates) for key, sample in batch.samples],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO marks (key, incarnation, last_seq) VALUES (?, ?, ?)",
        [(key, mark.incarnation, mark.seq) for key, mark in batch.marks.items()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO events (id, loader, at, kind, body, owner) VALUES (?, ?, ?, ?, ?, ?)",
        [(r.id, r.key, r.at, r.kind, r.body, r.owner) for r in batch.events],
    )
    sizes: dict[int, int] = {}
    for event in batch.events:
        sizes[event.owner] = sizes.get(event.owner, 0) + len(event.body)
    for owner, size in sizes.items():
        charge(connection, owner, size)
    connection.executemany(
        "INSERT INTO commands (id, loader, run, at, idempotency, request, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
        [(c.id, c.loader, c.run, c.at, c.idempotency, c.request, c.record) for c in batch.commands.values()],
    )
    for key in batch.forgotten:
        forget(connection, key)
    if batch.forgotten:
        # Places end with the last loader of their run; ';' comes after ':'.
        connection.execute(
            "DELETE FROM places WHERE NOT EXISTS (SELECT 1 FROM loaders WHERE id >= run || ':' AND id < run || ';')"
        )
    connection.executemany("DELETE FROM commands WHERE run = ?", [(run,) for run in batch.deleted])
    note(connection, batch.changes)


def note(connection: sqlite3.Connection, changes: Sequence[RunChangeStored]) -> None:
    connection.executemany(
        "INSERT INTO run_changes (at, run, record) VALUES (?, ?, ?)", [(c.at, c.run, c.record) for c in changes]
    )


def insert_places(connection: sqlite3.Connection, places: Sequence[RunPlace]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO places (run, place, number) VALUES (?, ?, ?)",
        [(place.run, place.place, place.number) for place in places],
    )


def forget(connection: sqlite3.Connection, key: int) -> None:
    for table, bulk in (("events", "body"), ("chunks", "rows")):
        for owner, size in connection.execute(
            f"SELECT owner, sum(length({bulk})) FROM {table} WHERE loader = ? GROUP BY owner", (key,)
        ).fetchall():
            charge(connection, owner, -size)
    for table in ("loaders", "marks"):
        connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
    for table in ("recent", "chunks", "events"):
        connection.execute(f"DELETE FROM {table} WHERE loader = ?", (key,))
