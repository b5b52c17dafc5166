"""Reading back loaders, events and commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ..store.batch import CommandStored, EventRecord, LoaderRecord, Mark


def read_loaders(connection: sqlite3.Connection) -> list[tuple[LoaderRecord, Mark]]:
    rows = connection.execute(
        "SELECT key, id, hello, snapshot, presence, seen, coalesce(incarnation, ''), coalesce(last_seq, -1) "
        "FROM loaders LEFT JOIN marks USING (key) ORDER BY key"
    )
    return [(LoaderRecord(*row[:6]), Mark(*row[6:])) for row in rows]


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
) -> list[EventRecord]:
    """Events of one loader in order; when there are more than `limit`, the newest or the oldest of them."""
    conditions = "loader = ? AND id > ? AND id < ?"
    values: list[object] = [key, after, 1 << 62 if before is None else before]
    if kinds:
        conditions += f" AND kind IN ({', '.join('?' * len(kinds))})"
        values.extend(kinds)
    order = "DESC" if newest else "ASC"
    rows = connection.execute(
        f"SELECT id, at, kind, body FROM events WHERE {conditions} ORDER BY id {order} LIMIT ?",
        (*values, limit),
    ).fetchall()
    if newest:
        rows.reverse()
    return [EventRecord(number, key, loader, at, kind, body) for number, at, kind, body in rows]


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


def read_command(connection: sqlite3.Connection, identifier: str) -> CommandStored | None:
    row = connection.execute(
        "SELECT id, loader, run, at, idempotency, request, record FROM commands WHERE id = ?", (identifier,)
    ).fetchone()
    return CommandStored(*row) if row else None
