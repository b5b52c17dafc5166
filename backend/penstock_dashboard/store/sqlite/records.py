"""Reading back loaders, events and commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ..batch import CommandStored, EventRecord, LoaderRecord, Mark, RunPlace
from ..database import CommandsAsked, EventsAsked


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
        "SELECT key, id, hello, presence, seen, owner, coalesce(incarnation, ''), coalesce(last_seq, -1) "
        "FROM loaders LEFT JOIN marks USING (key) ORDER BY key"
    )
    return [
        (LoaderRecord(key, name, hello, latest.get(key), presence, seen, owner), Mark(incarnation, seq))
        for key, name, hello, presence, seen, owner, incarnation, seq in rows
    ]


def read_places(connection: sqlite3.Connection) -> list[RunPlace]:
    return [RunPlace(*row) for row in connection.execute("SELECT run, place, number FROM places")]


def read_owners(connection: sqlite3.Connection) -> dict[str, int]:
    """Tokens that have published: name → number."""
    return {name: number for number, name in connection.execute("SELECT id, name FROM owners")}


def last_event(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("SELECT max(id) FROM events").fetchone()
    return found or 0


def read_events(connection: sqlite3.Connection, asked: EventsAsked) -> list[EventRecord]:
    conditions = "loader = ? AND id > ? AND id < ?"
    values: list[object] = [asked.key, asked.after, 1 << 62 if asked.before is None else asked.before]
    if asked.kinds:
        conditions += f" AND kind IN ({', '.join('?' * len(asked.kinds))})"
        values.extend(asked.kinds)
    order = "DESC" if asked.newest else "ASC"
    found = connection.execute(
        f"SELECT id, at, kind, body FROM events WHERE {conditions} ORDER BY id {order} LIMIT ?",
        (*values, asked.limit),
    )
    records: list[EventRecord] = []
    size = 0
    for number, at, kind, body in found:
        size += len(body)
        if records and size > asked.most_bytes:
            break
        records.append(EventRecord(number, asked.key, asked.loader, at, kind, body))
    found.close()  # a query that is not read to its end would hold the log back
    if asked.newest:
        records.reverse()
    return records


def read_commands(connection: sqlite3.Connection, asked: CommandsAsked) -> list[CommandStored]:
    conditions, values = ["at >= ?"], [asked.since]
    parameters: list[object] = list(values)
    for column, value in (("loader", asked.loader), ("run", asked.run), ("idempotency", asked.idempotency)):
        if value is not None:
            conditions.append(f"{column} = ?")
            parameters.append(value)
    rows = connection.execute(
        "SELECT id, loader, run, at, idempotency, request, record FROM commands "
        f"WHERE {' AND '.join(conditions)} ORDER BY n DESC LIMIT ?",
        (*parameters, asked.limit),
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


class StoredChunks:
    """The chunks of one loader."""

    def __init__(self, connection: sqlite3.Connection, key: int) -> None:
        self._connection = connection
        self._key = key

    def oldest(self, tier: int) -> float | None:
        found: tuple[float | None] = self._connection.execute(
            "SELECT min(start) FROM chunks WHERE loader = ? AND tier = ?", (self._key, tier)
        ).fetchone()
        return found[0]

    def between(self, tier: int, start: float, end: float, until: float) -> Iterator[bytes]:
        rows = self._connection.execute(
            "SELECT rows FROM chunks WHERE loader = ? AND tier = ? AND start >= ? AND start <= ? AND start < ? "
            "ORDER BY start",
            (self._key, tier, start, end, until),
        )
        return (blob for (blob,) in rows)
