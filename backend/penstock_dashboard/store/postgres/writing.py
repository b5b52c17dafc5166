"""Writing a batch into PostgreSQL. Everything here runs in a transaction.

The marks go first. Setting one locks it until the end, and only if the claim still holds: whoever wants to claim the
loader waits, and then sees all of this batch, or none. A batch whose fate is unknown, because the connection was lost
while it was committed, is given once more: what of it is there already has a mark that says so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..batch import Batch, LoaderRecord, RunChangeStored, RunPlace
from .schema import Connection

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_ROW = struct.Struct("!hiqidi")
"""Number of columns; length and value of the first; of the second; length of the third."""


def set_marks(connection: Connection, batch: Batch) -> tuple[frozenset[int], frozenset[int]]:
    """Note how far messages have come. Returns the loaders whose claim is void, and those that were noted before."""
    if not batch.marks:
        return frozenset(), frozenset()
    keys = sorted(batch.marks)
    values = keys, [batch.marks[key].claim for key in keys], [batch.marks[key].seq for key in keys]
    given = "unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS given (key, claim, seq)"
    done = connection.execute(
        f"UPDATE marks SET last_seq = given.seq FROM {given} WHERE marks.key = given.key AND marks.claim = given.claim "
        "AND marks.last_seq < given.seq RETURNING marks.key",
        values,
    ).fetchall()
    if len(done) == len(keys):
        return frozenset(), frozenset()
    before = connection.execute(
        f"SELECT marks.key FROM marks, {given} WHERE marks.key = given.key AND marks.claim = given.claim "
        "AND marks.last_seq >= given.seq AND NOT marks.key = ANY(%s)",
        (*values, [key for (key,) in done]),
    ).fetchall()
    noted = frozenset(key for (key,) in before)
    return frozenset(keys) - noted - frozenset(key for (key,) in done), noted


def insert(connection: Connection, batch: Batch) -> None:
    if batch.samples:
        rows = [_HEADER]
        for key, sample in batch.samples:
            rows.append(_ROW.pack(3, 8, key, 8, sample.at, len(sample.rates)))
            rows.append(sample.rates)
        rows.append(_TRAILER)
        with connection.cursor().copy("COPY recent (loader, at, rates) FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(b"".join(rows))
    if batch.events:
        connection.cursor().executemany(
            "INSERT INTO events (id, loader, at, kind, body, owner) VALUES (%s, %s, %s, %s, %s, %s)",
            [(r.id, r.key, r.at, r.kind, r.body, r.owner) for r in batch.events],
        )
        sizes: dict[int, int] = {}
        for event in batch.events:
            sizes[event.owner] = sizes.get(event.owner, 0) + len(event.body)
        charge(connection, sizes)
    if batch.commands:
        connection.cursor().executemany(
            "INSERT INTO commands (id, loader, run, at, idempotency, request, record) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
            [(c.id, c.loader, c.run, c.at, c.idempotency, c.request, c.record) for c in batch.commands.values()],
        )
    if batch.forgotten:
        forget(connection, batch.forgotten)
    if batch.deleted:
        connection.execute("DELETE FROM commands WHERE run = ANY(%s)", (batch.deleted,))
    if batch.changes:
        _note(connection, batch.changes)


def update_loaders(connection: Connection, records: Sequence[LoaderRecord]) -> None:
    """What is known of loaders by now, unless somebody else has claimed them and knows better."""
    connection.cursor().executemany(
        "UPDATE loaders SET hello = %s, snapshot = coalesce(%s, snapshot), presence = %s, seen = %s "
        "WHERE key = %s AND EXISTS (SELECT 1 FROM marks WHERE marks.key = loaders.key AND claim = %s)",
        [(r.hello, r.snapshot, r.presence, r.seen, r.key, r.claim) for r in sorted(records, key=_key)],
    )


def put_place(connection: Connection, run: str, place: str, change: RunChangeStored) -> RunPlace:
    """Of two who do this at once, one waits here, and has the higher number."""
    found = connection.execute("SELECT place, number FROM places WHERE run = %s FOR UPDATE", (run,)).fetchone()
    before = RunPlace(run) if found is None else RunPlace(run, *found)
    if found is not None and before.place == place:
        return before
    (number,) = connection.execute(
        "INSERT INTO places (run, place, number) VALUES (%s, %s, nextval('place_numbers')) "
        "ON CONFLICT (run) DO UPDATE SET place = excluded.place, number = nextval('place_numbers') RETURNING number",
        (run, place),
    ).fetchone() or (0,)
    if before.place != place:
        _note(connection, [change])
    return RunPlace(run, place, number)


def _note(connection: Connection, changes: Sequence[RunChangeStored]) -> None:
    connection.cursor().executemany(
        "INSERT INTO run_changes (at, run, record) VALUES (%s, %s, %s)", [(c.at, c.run, c.record) for c in changes]
    )


def _key(record: LoaderRecord) -> int:
    return record.key


def forget(connection: Connection, keys: Sequence[int]) -> None:
    sizes: dict[int, int] = {}
    for table, bulk in (("events", "body"), ("chunks", "rows")):
        for owner, size in connection.execute(
            f"SELECT owner, sum(length({bulk})) FROM {table} WHERE loader = ANY(%s) GROUP BY owner", (list(keys),)
        ).fetchall():
            sizes[owner] = sizes.get(owner, 0) - int(size)
    connection.execute("DELETE FROM marks WHERE key = ANY(%s)", (list(keys),))
    gone = connection.execute(
        "DELETE FROM loaders WHERE key = ANY(%s) RETURNING split_part(id, ':', 1)", (list(keys),)
    ).fetchall()
    connection.execute(
        "DELETE FROM places WHERE run = ANY(%s) "
        "AND NOT EXISTS (SELECT 1 FROM loaders WHERE split_part(id, ':', 1) = places.run)",
        (sorted({run for (run,) in gone}),),
    )
    for table in ("recent", "chunks", "events"):
        connection.execute(f"DELETE FROM {table} WHERE loader = ANY(%s)", (list(keys),))
    charge(connection, sizes)


def charge(connection: Connection, sizes: dict[int, int]) -> None:
    """Put bytes of events or chunks on owners' accounts, always in the same order: they are locked."""
    for owner in sorted(sizes):
        connection.execute(
            "INSERT INTO owners (id, name, bytes) VALUES (%s, %s, greatest(0, %s)) "
            "ON CONFLICT (id) DO UPDATE SET bytes = greatest(0, owners.bytes + %s)",
            (owner, f"#{owner}" if owner else "", sizes[owner], sizes[owner]),
        )
