"""What is done to the records once a minute: samples into chunks, what had its time out, and room if there is none.

Replicas share this: each takes the loaders whose number leaves its own place as the rest. Should they not agree on how
many they are, nothing is done twice: a sample that is deleted comes back to one of them only.
"""

from __future__ import annotations

from ...settings import Retention
from .. import compaction
from ..samples import TIERS, Sample
from .schema import Connection
from .writing import charge

ROWS = 20_000
"""Samples that are compacted in one transaction, about."""
PINNED = "(SELECT key FROM loaders WHERE split_part(id, ':', 1) IN (SELECT run FROM places WHERE place = 'pinned'))"

EVENTS, CHUNKS = ("events", "id", "body", "at"), ("chunks", "n", "rows", "stored")
VICTIMS = (
    (*EVENTS, "kind = 'spans'"),
    (*CHUNKS, "tier = 0"),
    (*CHUNKS, "tier = 1"),
    (*EVENTS, "kind != 'spans'"),
    (*CHUNKS, "tier = 2"),
)
"""Table, number, what is bulky in it, its age, which rows: in the order in which they go."""


def parts(connection: Connection, boundary: float, place: int, places: int) -> list[list[int]]:
    """Loaders that have samples from before a moment, in groups."""
    groups: list[list[int]] = [[]]
    size = 0
    for key, count in connection.execute(
        "SELECT loader, count(*) FROM recent WHERE at < %s AND loader %% %s = %s GROUP BY loader ORDER BY loader",
        (boundary, places, place),
    ):
        if size + count > ROWS and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(key)
        size += count
    return [group for group in groups if group]


def compact(connection: Connection, keys: list[int], boundary: float, now: float) -> None:
    """Turn the samples of some loaders into chunks. Runs in a transaction."""
    owners: dict[int, int] = dict(
        connection.execute("SELECT key, owner FROM loaders WHERE key = ANY(%s)", (keys,)).fetchall()
    )
    samples: dict[int, list[Sample]] = {}
    for key, at, rates in connection.cursor(binary=True).execute(
        "DELETE FROM recent WHERE loader = ANY(%s) AND at < %s RETURNING loader, at, rates", (keys, boundary)
    ):
        if key in owners:  # else it was forgotten, and these came too late
            samples.setdefault(key, []).append(Sample(at, rates))
    chunks = [chunk for key in samples for chunk in compaction.chunks_of(key, samples[key], owners[key], now)]
    with connection.cursor().copy("COPY chunks (tier, loader, start, stored, rows, owner) FROM STDIN BINARY") as copy:
        copy.set_types(["int8", "int8", "float8", "float8", "bytea", "int8"])
        for chunk in chunks:
            copy.write_row(chunk)
    sizes: dict[int, int] = {}
    for *_, rows, owner in chunks:
        sizes[owner] = sizes.get(owner, 0) + len(rows)
    charge(connection, sizes)


def expire(connection: Connection, retention: Retention, now: float) -> None:
    """Drop what had its time; of runs that are pinned, not what is small. Runs in a transaction."""
    spared = f"AND loader NOT IN {PINNED}"
    sizes: dict[int, int] = {}
    for tier, kept in enumerate((retention.samples, retention.ten_seconds, retention.minutes)):
        which = f"tier = %s AND stored < %s {spared if tier == len(TIERS) - 1 else ''}"
        _drop(connection, sizes, "chunks", "rows", which, (tier, now - kept))
    _drop(connection, sizes, "events", "body", "kind = 'spans' AND at < %s", (now - retention.samples,))
    _drop(connection, sizes, "events", "body", f"kind != 'spans' AND at < %s {spared}", (now - retention.minutes,))
    charge(connection, sizes)
    for table in ("commands", "run_changes"):
        connection.execute(f"DELETE FROM {table} WHERE at < %s", (now - retention.minutes,))


def make_room(connection: Connection, cap: int) -> int:
    """If the records take more than they may: drop a quarter of one kind of whoever has most. Returns bytes dropped;
    0: nothing had to go, or nothing can. Runs in a transaction.
    """
    used: dict[int, int] = dict(connection.execute("SELECT id, bytes FROM owners").fetchall())
    for owner, size in connection.execute(
        "SELECT owner, sum(length(hello) + coalesce(length(snapshot), 0)) FROM loaders GROUP BY owner"
    ):
        used[owner] = used.get(owner, 0) + int(size)
    (commands,) = connection.execute("SELECT coalesce(sum(length(record)), 0) FROM commands").fetchone() or (0,)
    if sum(used.values()) + int(commands) <= cap:
        return 0
    if int(commands) >= max(used.values(), default=0):
        connection.execute(
            "DELETE FROM commands WHERE n IN (SELECT n FROM commands ORDER BY n LIMIT "
            "(SELECT count(*) / 4 + 1 FROM commands))"
        )
        return int(commands) // 4
    for owner in sorted(used, key=lambda owner: -used[owner]):
        for whose in (f"NOT IN {PINNED}", f"IN {PINNED}"):
            dropped = _drop_oldest(connection, owner, whose)
            if dropped:
                return dropped
    return 0


def _drop_oldest(connection: Connection, owner: int, whose: str) -> int:
    for table, number, bulk, age, kind in VICTIMS:
        which = f"owner = %s AND {kind} AND loader {whose}"
        found = connection.execute(f"SELECT count(*) FROM {table} WHERE {which}", (owner,)).fetchone()
        if found and found[0]:
            sizes: dict[int, int] = {}
            oldest = f"{number} IN (SELECT {number} FROM {table} WHERE {which} ORDER BY {age} LIMIT %s)"
            _drop(connection, sizes, table, bulk, oldest, (owner, found[0] // 4 + 1))
            charge(connection, sizes)
            return -sum(sizes.values())
    dropped = connection.execute(
        f"UPDATE loaders SET snapshot = NULL WHERE owner = %s AND snapshot IS NOT NULL AND key {whose}", (owner,)
    )
    return dropped.rowcount


def _drop(
    connection: Connection, sizes: dict[int, int], table: str, bulk: str, which: str, values: tuple[object, ...]
) -> None:
    """Delete records, and note by how much their owners have less."""
    for owner, size in connection.execute(
        f"WITH gone AS (DELETE FROM {table} WHERE {which} RETURNING owner, length({bulk}) AS size) "
        "SELECT owner, sum(size) FROM gone GROUP BY owner",
        values,
    ).fetchall():
        sizes[owner] = sizes.get(owner, 0) - int(size)
