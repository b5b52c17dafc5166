"""Reading back from PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

from ..batch import CommandStored, EventRecord, LoaderRecord, Mark, RunPlace
from ..database import CommandsAsked, EventsAsked
from ..samples import Sample
from .schema import Connection

COMMAND = "id, loader, run, at, idempotency, request, record"


def read_loaders(connection: Connection, snapshots: int) -> list[tuple[LoaderRecord, Mark]]:
    latest: dict[int, bytes] = {}
    size = 0
    with connection.cursor("latest") as found:
        found.itersize = 100
        found.execute("SELECT key, snapshot FROM loaders WHERE snapshot IS NOT NULL ORDER BY seen DESC")
        for key, snapshot in found:
            size += len(snapshot)
            if size > snapshots:
                break
            latest[key] = snapshot
    rows = connection.execute(
        "SELECT key, id, hello, presence, seen, owner, coalesce(incarnation, ''), coalesce(last_seq, -1), "
        "coalesce(claim, 0) FROM loaders LEFT JOIN marks USING (key) ORDER BY key"
    )
    return [
        (
            LoaderRecord(key, name, hello, latest.get(key), presence, seen, owner, claim),
            Mark(incarnation, seq, claim),
        )
        for key, name, hello, presence, seen, owner, incarnation, seq, claim in rows
    ]


def read_places(connection: Connection) -> list[RunPlace]:
    return [RunPlace(*row) for row in connection.execute("SELECT run, place, number FROM places")]


def read_owners(connection: Connection) -> dict[str, int]:
    return {name: number for number, name in connection.execute("SELECT id, name FROM owners")}


def read_identity(connection: Connection) -> str:
    (found,) = connection.execute("SELECT id FROM identity").fetchone() or ("",)
    return str(found)


def read_events(connection: Connection, asked: EventsAsked) -> list[EventRecord]:
    conditions = "loader = %s AND id > %s AND id < %s"
    values: list[object] = [asked.key, asked.after, 1 << 62 if asked.before is None else asked.before]
    if asked.kinds:
        conditions += " AND kind = ANY(%s)"
        values.append(list(asked.kinds))
    order = "DESC" if asked.newest else "ASC"
    records: list[EventRecord] = []
    size = 0
    with connection.cursor("events") as found:  # on the server: only what fits comes here
        found.itersize = 200
        found.execute(
            f"SELECT id, at, kind, body FROM events WHERE {conditions} ORDER BY id {order} LIMIT %s",
            (*values, asked.limit),
        )
        for number, at, kind, body in found:
            size += len(body)
            if records and size > asked.most_bytes:
                break
            records.append(EventRecord(number, asked.key, asked.loader, at, kind, body))
    if asked.newest:
        records.reverse()
    return records


def read_commands(connection: Connection, asked: CommandsAsked) -> list[CommandStored]:
    conditions, values = ["at >= %s"], [asked.since]
    parameters: list[object] = list(values)
    for column, value in (("loader", asked.loader), ("run", asked.run), ("idempotency", asked.idempotency)):
        if value is not None:
            conditions.append(f"{column} = %s")
            parameters.append(value)
    rows = connection.execute(
        f"SELECT {COMMAND} FROM commands WHERE {' AND '.join(conditions)} ORDER BY n DESC LIMIT %s",
        (*parameters, asked.limit),
    )
    return [CommandStored(*row) for row in rows]


def read_command(connection: Connection, identifier: str) -> CommandStored | None:
    row = connection.execute(f"SELECT {COMMAND} FROM commands WHERE id = %s", (identifier,)).fetchone()
    return CommandStored(*row) if row else None


def read_run_changes(connection: Connection, run: str | None, limit: int) -> list[bytes]:
    which, values = ("", ()) if run is None else ("WHERE run = %s", (run,))
    rows = connection.execute(f"SELECT record FROM run_changes {which} ORDER BY n DESC LIMIT %s", (*values, limit))
    return [record for (record,) in rows]


def read_recent(connection: Connection, key: int) -> list[Sample]:
    rows = connection.execute("SELECT at, rates FROM recent WHERE loader = %s", (key,))
    return [Sample(at, rates) for at, rates in rows]


class StoredChunks:
    """The chunks of one loader, in the same moment in which `read_recent` was asked."""

    def __init__(self, connection: Connection, key: int) -> None:
        self._connection = connection
        self._key = key

    def oldest(self, tier: int) -> float | None:
        found = self._connection.execute(
            "SELECT min(start) FROM chunks WHERE loader = %s AND tier = %s", (self._key, tier)
        ).fetchone()
        return None if found is None else found[0]

    def between(self, tier: int, start: float, end: float, until: float) -> Iterator[bytes]:  # noqa: ARG002
        """A sample is either recent or in a chunk here, so `until` does not matter."""
        rows = self._connection.execute(
            "SELECT rows FROM chunks WHERE loader = %s AND tier = %s AND start >= %s AND start <= %s ORDER BY start",
            (self._key, tier, start, end),
        )
        return (blob for (blob,) in rows)
