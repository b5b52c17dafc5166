"""Reading back loaders, events and commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ..store.batch import CommandStored, EventRecord, LoaderRecord, Mark


def read_loaders(connection: sqlite3.Connection, snapshots: int = 32 << 20) -> list[tuple[LoaderRecord, Mark]]:
    """All loaders; of their last snapshots the latest, up to so many bytes in all."""
    latest: dict[int, bytes] = {}
    size = 0
    for key, snapshot in connection.execute(
        "SELECT key, snapshot FROM loaders WHERE snapshot IS NOT NULL ORDER BY seen DESC"
    ):
        size += len(snapshot)
        if size > snapshots:
            break
        latest[key] = snapshot
    rows = connection.execute(
        "SELECT key, id, hello, presence, seen, owner, place, coalesce(incarnation, ''), coalesce(last_seq, -1) "
        "FROM loaders LEFT JOIN marks USING (key) ORDER BY key"
    )
    return [
        (LoaderRecord(key, name, hello, latest.get(key), presence, seen, owner, place), Mark(incarnation, seq))
        for key, name, hello, presence, seen, owner, place, incarnation, seq in rows
    ]


def read_owners(connection: sqlite3.Connection) -> dict[str, int]:
    """Tokens that have published: name → number."""
    return {name: number for number, name in connection.execute("SELECT id, name FROM owners")}


def last_event(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("SELECT max(id) FROM events").fetchone()
    return found or 0


def read_events(
    connection: sqlite3.Connection,
    key: int,
    loader: str,
    *,
    after: int = 0,
    before: int | None = None,
    kinds: Sequence[str] = (),
    limit: int = 1000,
    newest: bool = True,
    most_bytes: int = 16 << 20,
) -> list[EventRecord]:
    """Events of one loader in order; when there are more than `limit`, or than fit, the newest or the oldest of
    them, at least one.
    """
    conditions = "loader = ? AND id > ? AND id < ?"
    values: list[object] = [key, after, 1 << 62 if before is None else before]
    if kinds:
        conditions += f" AND kind IN ({', '.join('?' * len(kinds))})"
        values.extend(kinds)
    order = "DESC" if newest else "ASC"
    found = connection.execute(
        f"SELECT id, at, kind, body FROM events WHERE {conditions} ORDER BY id {order} LIMIT ?",
        (*values, limit),
    )
    records: list[EventRecord] = []
    size = 0
    for number, at, kind, body in found:
        size += len(body)
        if records and size > most_bytes:
            break
        records.append(EventRecord(number, key, loader, at, kind, body))
    found.close()  # a query that is not read to its end would hold the log back
    if newest:
        records.reverse()
    return records


def read_past(
    connection: sqlite3.Connection, key: int, loader: str, after: int, limit: int, most_bytes: int
) -> tuple[list[EventRecord], bool]:
    """The newest events after one, and whether they are all."""
    records = read_events(connection, key, loader, after=after, limit=limit, most_bytes=most_bytes)
    if not records:
        return [], True
    older = connection.execute(
        "SELECT 1 FROM events WHERE loader = ? AND id > ? AND id < ? LIMIT 1", (key, after, records[0].id)
    ).fetchone()
    return records, older is None


def read_commands(
    connection: sqlite3.Connection,
    *,
    loader: str | None = None,
    run: str | None = None,
    since: float = 0.0,
    limit: int = 1000,
) -> list[CommandStored]:
    """Newest first."""
    conditions, values = ["at >= ?"], [since]
    parameters: list[object] = list(values)
    for column, value in (("loader", loader), ("run", run)):
        if value is not None:
            conditions.append(f"{column} = ?")
            parameters.append(value)
    rows = connection.execute(
        "SELECT id, loader, run, at, idempotency, request, record FROM commands "
        f"WHERE {' AND '.join(conditions)} ORDER BY n DESC LIMIT ?",
        (*parameters, limit),
    )
    return [CommandStored(*row) for row in rows]


def read_run_changes(connection: sqlite3.Connection, run: str | None, limit: int) -> list[bytes]:
    """What was done to runs, or to one, as JSON; the newest first."""
    which, values = ("", ()) if run is None else ("WHERE run = ?", (run,))
    rows = connection.execute(f"SELECT record FROM run_changes {which} ORDER BY n DESC LIMIT ?", (*values, limit))
    return [record for (record,) in rows]


def read_command(connection: sqlite3.Connection, identifier: str) -> CommandStored | None:
    row = connection.execute(
        "SELECT id, loader, run, at, idempotency, request, record FROM commands WHERE id = ?", (identifier,)
    ).fetchone()
    return CommandStored(*row) if row else None
