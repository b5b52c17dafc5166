"""The records in PostgreSQL, shared by several replicas.

While the server cannot be reached, the batch that waits is kept and tried again: nothing is acknowledged meanwhile, and
when there is no more room nothing is read from loaders, which keep what they have.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import psycopg
from penstock.protocol import History

from ...settings import Limits, Retention
from .. import compaction
from ..batch import Batch, CommandStored, EventRecord, LoaderRecord, RunChangeStored, RunPlace
from ..database import (
    Claim,
    CommandsAsked,
    Database,
    EventsAsked,
    HistoryAsked,
    Known,
    LinkStored,
    Unavailable,
    Wanted,
)
from ..history import read_history
from . import upkeep
from .connecting import connect, shown
from .reading import (
    StoredChunks,
    read_command,
    read_commands,
    read_events,
    read_identity,
    read_loaders,
    read_owners,
    read_places,
    read_recent,
    read_run_changes,
)
from .schema import SCHEMA, Connection, migrate
from .writing import insert, put_place, set_marks, update_loaders

log = logging.getLogger("penstock.store")

T = TypeVar("T")

MOST_WRITTEN = 4 << 20
"""Bytes of all events of one message as JSON."""
MOST_SAMPLES = 1_000_000
"""Samples that this replica stores before it makes chunks of them, the full minute or not."""
AGAIN = 0.5
"""Seconds between two attempts to reach the server."""
ROOM_EVERY = 64
"""Room is looked for after a part of all bytes was written: one in so many."""


class Postgres(Database):
    """A database on a server."""

    def __init__(self, url: str, retention: Retention, batch: int = Limits().batch) -> None:
        """Raises `Unavailable`."""
        self.warning = ""
        self._url = url
        self._retention = retention
        self._batch = max(512 << 10, min(batch, retention.max_bytes // 8))
        self._dropped = 0
        self._mine: dict[int, int] = {}
        """Loader → the last claim that was made here."""
        self._samples = 0
        """Stored since the last compaction."""
        self._written = 0
        """Bytes since room was looked for."""
        self._ending = threading.Event()
        self._compacted = time.time()
        self._local = threading.local()
        self._reading: list[Connection] = []
        self._connection: Connection | None = connect(url)
        migrate(self._connection)

    @property
    def in_memory(self) -> bool:
        return False

    @property
    def dropped(self) -> int:
        return self._dropped

    @property
    def cap(self) -> int:
        return self._retention.max_bytes

    @property
    def batch(self) -> int:
        return self._batch

    @property
    def most_written(self) -> int:
        return min(MOST_WRITTEN, self._retention.max_bytes // 4)

    @property
    def busy(self) -> bool:
        return False

    # ---------------------------------------------------------------------------------------------- writing

    def begin(self) -> None:
        pass

    def owner(self, token: str) -> int:
        def work(connection: Connection) -> int:
            connection.execute("INSERT INTO owners (name) VALUES (%s) ON CONFLICT (name) DO NOTHING", (token,))
            return int(_first(connection.execute("SELECT id FROM owners WHERE name = %s", (token,)).fetchone()))

        return self._persist(work)

    def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        made = self._persist(lambda connection: _claim(connection, wanted))
        claims = [msgspec.structs.replace(one, moved=self._mine.get(one.key) != one.number - 1) for one in made]
        self._mine.update((one.key, one.number) for one in made)
        return claims

    def store(self, batch: Batch) -> Batch:
        if batch.events:
            ids = iter(self._persist(lambda connection: _event_ids(connection, len(batch.events))))
            numbered = [msgspec.structs.replace(event, id=next(ids)) for event in batch.events]
            batch = msgspec.structs.replace(batch, events=numbered)
        stored = self._persist(lambda connection: _store(connection, batch))
        for key in batch.forgotten:
            self._mine.pop(key, None)
        self._samples += len(stored.samples)
        self._written += batch.size
        return stored

    def store_loaders(self, records: Sequence[LoaderRecord]) -> None:
        self._persist(lambda connection: update_loaders(connection, records))
        self._written += sum(record.size for record in records)

    def put_place(self, run: str, place: str, change: RunChangeStored) -> RunPlace:
        return self._persist(lambda connection: put_place(connection, run, place, change))

    def put_link(self, link: LinkStored, most: int) -> None:
        def work(connection: Connection) -> None:
            connection.execute("DELETE FROM links WHERE until < %s", (time.time(),))
            connection.execute(
                "INSERT INTO links (digest, token, proof, until) VALUES (%s, %s, %s, %s)",
                (link.digest, link.token, link.proof, link.until),
            )
            connection.execute(
                "DELETE FROM links WHERE n NOT IN (SELECT n FROM links ORDER BY n DESC LIMIT %s)", (most,)
            )

        self._persist(work)

    def take_link(self, digest: str) -> LinkStored | None:
        taken = "DELETE FROM links WHERE digest = %s RETURNING digest, token, proof, until"
        row = self._persist(lambda connection: connection.execute(taken, (digest,)).fetchone())
        return LinkStored(*row) if row else None

    def tend(self) -> None:
        now = time.time()
        try:
            crowded = self._samples > MOST_SAMPLES
            if compaction.due(self._compacted, now) or crowded:
                self._compacted, self._samples = now, 0
                self._compact(float("inf") if crowded else now - now % compaction.INTERVAL, now)
            if self._written > self.cap // ROOM_EVERY:
                self._written = 0
                self._make_room()
        except psycopg.Error:
            log.warning("the upkeep of the database failed; it is tried again", exc_info=True)
            self._lose()

    def _compact(self, boundary: float, now: float) -> None:
        place, places = self.share()
        for keys in upkeep.parts(self._connected(), boundary, place, places):
            with self._connected().transaction():
                upkeep.compact(self._connected(), keys, boundary, now)
        if place == 0:
            with self._connected().transaction():
                upkeep.expire(self._connected(), self._retention, now)

    def _make_room(self) -> None:
        while True:
            with self._connected().transaction():
                dropped = upkeep.make_room(self._connected(), self.cap)
            if not dropped:
                return
            self._dropped += dropped

    def give_up(self) -> None:
        self._ending.set()

    def close(self) -> None:
        self._lose()
        for connection in self._reading:
            connection.close()

    def _persist(self, work: Callable[[Connection], T]) -> T:
        """Do something in a transaction, however long it takes until the server can be reached."""
        while True:
            try:
                connection = self._connected()
                with connection.transaction():
                    result = work(connection)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                continue
            except (psycopg.OperationalError, psycopg.InterfaceError, Unavailable) as error:
                self._lose()
                self._warn(error)
                if self._ending.wait(AGAIN):
                    raise Unavailable(self.warning) from error
            else:
                self.warning = ""
                return result

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._url)
        return self._connection

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _warn(self, error: Exception) -> None:
        if not self.warning:
            log.error("%s", error)
        self.warning = (
            f"The database {shown(self._url)} cannot be reached. Nothing is acknowledged until it is back; loaders "
            "keep what they have."
        )[:256]

    # ---------------------------------------------------------------------------------------------- reading

    def known(self, snapshots: int) -> Known:
        return self._query(
            lambda connection: Known(
                read_loaders(connection, snapshots),
                read_owners(connection),
                read_places(connection),
                read_identity(connection),
            )
        )

    def history(self, asked: HistoryAsked) -> History:
        def read(connection: Connection) -> History:
            recent = read_recent(connection, asked.key)
            return read_history(StoredChunks(connection, asked.key), recent, asked, self._retention)

        return self._query(read)

    def events(self, asked: EventsAsked) -> list[EventRecord]:
        return self._query(lambda connection: read_events(connection, asked))

    def commands(self, asked: CommandsAsked) -> list[CommandStored]:
        return self._query(lambda connection: read_commands(connection, asked))

    def command(self, identifier: str) -> CommandStored | None:
        return self._query(lambda connection: read_command(connection, identifier))

    def run_changes(self, run: str | None, limit: int) -> list[bytes]:
        return self._query(lambda connection: read_run_changes(connection, run, limit))

    def used_bytes(self) -> int:
        sizes = (
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class "
            f"WHERE relkind = 'r' AND relnamespace = '{SCHEMA}'::regnamespace"
        )
        return int(self._query(lambda connection: _first(connection.execute(sizes).fetchone())))

    def _query(self, query: Callable[[Connection], T]) -> T:
        """Ask about one moment, on the calling thread's own connection. One that was lost is made again, once."""
        for attempt in range(2):
            connection: Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = connect(self._url)
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.read_only = True
                self._reading.append(connection)
            try:
                with connection.transaction():
                    return query(connection)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                connection.close()
                self._reading.remove(connection)
                self._local.connection = None
                if attempt:
                    raise Unavailable(f"The database {shown(self._url)} does not answer.") from error
        raise AssertionError


def _first(row: tuple[T, ...] | None) -> T:
    assert row is not None
    return row[0]


def _event_ids(connection: Connection, count: int) -> list[int]:
    """Numbers for events: taken before they are stored, so that a batch that is given again has the same."""
    rows = connection.execute("SELECT nextval('event_ids') FROM generate_series(1, %s)", (count,))
    return sorted(number for (number,) in rows)


def _claim(connection: Connection, wanted: Sequence[Wanted]) -> list[Claim]:
    names = sorted({one.id: one for one in wanted}.values(), key=lambda one: one.id)
    connection.cursor().executemany(
        "INSERT INTO loaders (id, hello, presence, seen, owner) VALUES (%s, %s, 'connected', %s, %s) "
        "ON CONFLICT (id) DO NOTHING",
        [(one.id, one.hello, one.at, one.owner) for one in names],
    )
    found = connection.execute("SELECT id, key, owner FROM loaders WHERE id = ANY(%s)", ([one.id for one in names],))
    known = {name: (key, owner) for name, key, owner in found}
    runs = {one.id: one.id.partition(":")[0] for one in names}
    placed = "SELECT run, place, number FROM places WHERE run = ANY(%s)"
    places = {row[0]: RunPlace(*row) for row in connection.execute(placed, (sorted(set(runs.values())),))}
    made: dict[int, Claim] = {}
    # In order of their numbers, as everybody does who locks several marks.
    for place in sorted(range(len(wanted)), key=lambda place: (known[wanted[place].id], place)):
        key, owner = known[wanted[place].id]
        number, last_seq = connection.execute(
            "INSERT INTO marks (key, incarnation, last_seq, claim) VALUES (%s, %s, -1, 1) ON CONFLICT (key) DO UPDATE "
            "SET claim = marks.claim + 1, incarnation = excluded.incarnation, last_seq = "
            "CASE WHEN marks.incarnation = excluded.incarnation THEN marks.last_seq ELSE -1 END "
            "RETURNING claim, last_seq",
            (key, wanted[place].incarnation),
        ).fetchone() or (0, -1)
        made[place] = Claim(key, owner, number, last_seq, places.get(runs[wanted[place].id]))
    return [made[place] for place in range(len(wanted))]


def _store(connection: Connection, batch: Batch) -> Batch:
    void, noted = set_marks(connection, batch)
    stored = batch.without(void)
    insert(connection, stored.without(noted) if noted else stored)
    return stored
