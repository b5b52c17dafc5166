"""The records in one SQLite file: the default, with nothing to configure.

When SQLite fails (a full disk, a damaged file) a database in memory takes its place, with the batch that failed;
`warning` says so, and what is stored from then on is reported as not durable.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from penstock.protocol import History

from ...settings import Limits, Retention
from .. import compaction
from ..batch import Batch, CommandStored, EventRecord, LoaderRecord, Mark, RunChangeStored, RunPlace
from ..database import (
    AskTheWriter,
    Claim,
    CommandsAsked,
    Database,
    EventsAsked,
    HistoryAsked,
    Known,
    LinkStored,
    Wanted,
)
from ..history import read_history
from ..samples import Sample
from .compacting import compact, expire
from .inserting import insert, insert_loaders, insert_places, note
from .records import (
    StoredChunks,
    last_event,
    read_command,
    read_commands,
    read_events,
    read_loaders,
    read_owners,
    read_places,
    read_run_changes,
)
from .schema import open_database, open_reader
from .space import Space, is_busy, used_bytes

log = logging.getLogger("penstock.store")

T = TypeVar("T")

FILE_NAME = "penstock.db"
BUSY_TRIES = 15
"""Times that the lock is waited for, 2 s each, before the file counts as unusable."""
FULL_TRIES = 4
"""Times that more room is made when SQLite finds too little."""
BROKEN = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOTADB,
    }
)
"""Errors of a file that is no use any more."""

Work = Callable[[sqlite3.Connection], None]


class Sqlite(Database):
    """A file, or a database in memory."""

    def __init__(self, data: Path | None, retention: Retention, batch: int = Limits().batch) -> None:
        """`data` is the folder; None: in memory."""
        self.path = data and data / FILE_NAME
        """None once the database is in memory."""
        self.warning = ""
        self.recent: dict[int, list[Sample]] = {}
        """Loader → its samples since the last compaction; the table of that name holds the same."""
        self.space = Space(self.path, retention.max_bytes, batch)
        self._retention = retention
        self._loaders: dict[str, tuple[int, int]] = {}
        """Loader's id → its number, its owner."""
        self._owners: dict[int, int] = {}
        """Loader → its owner."""
        self._marks: dict[int, Mark] = {}
        """Loader → what of its messages is stored; here, too, so that they are known should the file fail."""
        self._places: dict[str, RunPlace] = {}
        """Run → its place, if it was given one; here, too, for the same reason."""
        self._claims: dict[int, int] = {}
        """Loader → the claim that holds."""
        self._numbers = itertools.count(1)
        self._keys = itertools.count(1)
        self._place_numbers = itertools.count(1)
        self._links: dict[str, LinkStored] = {}
        """In memory: a link does not outlive the dashboard that printed it."""
        self._event = 0
        """The last number that an event was given."""
        self._thread = 0
        self._broken: sqlite3.DatabaseError | None = None
        """What a reader met with, until the writer sees to it."""
        self._local = threading.local()
        self._reading: list[sqlite3.Connection] = []
        self._compacted = time.time()
        self._connection = self._open()

    @property
    def in_memory(self) -> bool:
        return self.path is None

    @property
    def dropped(self) -> int:
        return self.space.dropped

    @property
    def cap(self) -> int:
        return self.space.cap

    @property
    def batch(self) -> int:
        return self.space.batch

    @property
    def most_written(self) -> int:
        return self.space.most_written

    @property
    def busy(self) -> bool:
        return self.space.untidy

    # ---------------------------------------------------------------------------------------------- writing

    def begin(self) -> None:
        self._thread = threading.get_ident()

    def owner(self, token: str) -> int:
        known = read_owners(self._connection)
        if token not in known:
            number = known[token] = max(known.values(), default=0) + 1
            self._attempt(
                lambda connection: connection.execute("INSERT INTO owners (id, name) VALUES (?, ?)", (number, token))
            )
        return known[token]

    def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        new: dict[str, LoaderRecord] = {}
        for one in wanted:
            if one.id not in self._loaders and one.id not in new:
                new[one.id] = LoaderRecord(next(self._keys), one.id, one.hello, None, "connected", one.at, one.owner)
        if new:
            self.store_loaders(list(new.values()))
        return [self._claim(one) for one in wanted]

    def _claim(self, wanted: Wanted) -> Claim:
        key, owner = self._loaders[wanted.id]
        self._claims[key] = next(self._numbers)
        mark = self._marks.get(key)
        known = mark is not None and mark.incarnation == wanted.incarnation
        last_seq = mark.seq if mark is not None and known else -1
        return Claim(key, owner, self._claims[key], last_seq, self._places.get(wanted.id.partition(":")[0]))

    def store(self, batch: Batch) -> Batch:
        claims = self._claims
        batch = batch.without(frozenset(key for key, mark in batch.marks.items() if mark.claim != claims.get(key)))
        self._marks.update(batch.marks)
        for key, sample in batch.samples:
            self.recent.setdefault(key, []).append(sample)
        numbered = []
        for event in batch.events:
            self._event += 1
            numbered.append(msgspec.structs.replace(event, id=self._event))
        batch = msgspec.structs.replace(batch, events=numbered)
        if batch.forgotten:
            self._forget(frozenset(batch.forgotten))
        self._attempt(lambda connection: insert(connection, batch), batch.size)
        for key in batch.forgotten:
            self.space.forgotten(key)
        return batch

    def _forget(self, keys: frozenset[int]) -> None:
        for key in keys:
            self._owners.pop(key, None)
            self._claims.pop(key, None)
            self._marks.pop(key, None)
            self.recent.pop(key, None)
        self._loaders = {loader: found for loader, found in self._loaders.items() if found[0] not in keys}
        runs = {loader.partition(":")[0] for loader in self._loaders}
        self._places = {run: place for run, place in self._places.items() if run in runs}

    def store_loaders(self, records: Sequence[LoaderRecord]) -> None:
        self._attempt(partial(insert_loaders, records=records), sum(record.size for record in records))
        for record in records:
            self.space.stored(record)
            self._owners[record.key] = record.owner
            self._loaders[record.id] = (record.key, record.owner)

    def put_place(self, run: str, place: str, change: RunChangeStored) -> RunPlace:
        before = self._places.get(run)
        if before is not None and before.place == place:
            return before
        given = self._places[run] = RunPlace(run, place, next(self._place_numbers))
        changes = [change] if place != (before or RunPlace(run)).place else []

        def work(connection: sqlite3.Connection) -> None:
            insert_places(connection, [given])
            note(connection, changes)

        self._attempt(work, len(change.record))
        return given

    def put_link(self, link: LinkStored, most: int) -> None:
        self._links[link.digest] = link
        while len(self._links) > most:
            del self._links[next(iter(self._links))]

    def take_link(self, digest: str) -> LinkStored | None:
        return self._links.pop(digest, None)

    def tend(self) -> None:
        if compaction.due(self._compacted, time.time()) or self._crowded():
            self.compact()
        self._guarded(lambda connection: _patiently(lambda: self.space.tidy(connection)))

    def _crowded(self) -> bool:
        return sum(map(len, self.recent.values())) > self.space.most_samples

    def compact(self) -> None:
        """Samples of whole minutes into chunks, and what had its time out."""
        now = self._compacted = time.time()
        # A loader whose clock is ahead would keep its samples here for ever, so a crowd is taken whole.
        boundary = float("inf") if self._crowded() else now - now % compaction.INTERVAL
        done, rest = compaction.split(self.recent, boundary)
        for part in compaction.in_parts(done, self.space.batch):
            size = sum(map(compaction.size_of, part.values()))
            self._attempt(partial(compact, done=part, rest=rest, owners=self._owners, now=now), size)
            # Only after the commit: a reader copies `recent` first and then reads older chunks only, so between
            # the commit and this line it sees every sample once.
            left = {key: rest[key] for key in part if key in rest}
            self.recent = {key: samples for key, samples in self.recent.items() if key not in part} | left
        self._attempt(lambda connection: expire(connection, self._retention, now))

    def close(self) -> None:
        """The last connection that is closed takes the log away with it: the writer's."""
        for connection in (*self._reading, self._connection):
            try:
                connection.close()
            except sqlite3.Error:
                log.exception("closing the database failed")

    # ---------------------------------------------------------------------------------------------- reading

    def known(self, snapshots: int) -> Known:
        return self._query(
            lambda connection: Known(
                read_loaders(connection, snapshots), read_owners(connection), read_places(connection)
            )
        )

    def history(self, asked: HistoryAsked) -> History:
        recent = list(self.recent.get(asked.key, ()))  # before the chunks are read: see `compact`
        return self._query(
            lambda connection: read_history(StoredChunks(connection, asked.key), recent, asked, self._retention)
        )

    def events(self, asked: EventsAsked) -> list[EventRecord]:
        return self._query(lambda connection: read_events(connection, asked))

    def commands(self, asked: CommandsAsked) -> list[CommandStored]:
        return self._query(lambda connection: read_commands(connection, asked))

    def command(self, identifier: str) -> CommandStored | None:
        return self._query(lambda connection: read_command(connection, identifier))

    def run_changes(self, run: str | None, limit: int) -> list[bytes]:
        return self._query(lambda connection: read_run_changes(connection, run, limit))

    def used_bytes(self) -> int:
        return self._query(used_bytes)

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """On the writer's connection if this is its thread, else on the reader's own."""
        if threading.get_ident() == self._thread:
            if self._broken is not None:
                self.degrade(self._broken)
            return query(self._connection)
        path = self.path
        if path is None:
            raise AskTheWriter
        try:
            return query(self._reader(path))
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in BROKEN:
                raise
            self._broken = error
            raise AskTheWriter from error

    def _reader(self, path: Path) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(path)
            self._reading.append(connection)
        return connection

    # ------------------------------------------------------------------------------ a disk that fails or fills

    def _attempt(self, work: Callable[[sqlite3.Connection], object], size: int = 0) -> None:
        """Do something in a transaction of so many bytes; if the file fails, in a new database in memory."""
        if self._guarded(lambda connection: self._fitting(connection, work, size)):
            return
        self._guarded(lambda connection: self._fitting(connection, work, size))

    def _fitting(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], object], size: int) -> None:
        """In a transaction for which there is room."""
        _patiently(lambda: self.space.ready(connection))
        for attempt in range(FULL_TRIES):
            _patiently(partial(self.space.make_room, connection, size << attempt))
            try:
                _patiently(lambda: _transaction(connection, work))
                break
            except sqlite3.OperationalError as error:
                # Too little room below our own limit: the estimate was wrong. Below the disk's: there is none.
                ours = self.space.room(connection) < (size << (attempt + 2)) + self.space.cap // 8
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL or not ours or attempt == FULL_TRIES - 1:
                    raise
        self.space.checkpoint(connection)

    def _guarded(self, work: Work) -> bool:
        """Whether it went well. If not, the database is in memory from now on."""
        try:
            work(self._connection)
            return True
        except sqlite3.Error as error:
            if self.path is None:
                log.exception("the database in memory failed; this batch is dropped")
                return True
            self.degrade(error)
            return False

    def _open(self) -> sqlite3.Connection:
        try:
            connection = open_database(self.path)
            self.space.attach(connection)
            for key, at, rates in connection.execute("SELECT loader, at, rates FROM recent ORDER BY n"):
                self.recent.setdefault(key, []).append(Sample(at, rates))
            for record, mark in read_loaders(connection, 0):
                self._owners[record.key] = record.owner
                self._loaders[record.id] = (record.key, record.owner)
                self._marks[record.key] = mark
            self._places = {place.run: place for place in read_places(connection)}
            self._event = last_event(connection)
        except (sqlite3.Error, OSError) as error:
            self.recent.clear()
            self._warn(error)
            connection = self._open_in_memory()
        self._keys = itertools.count(max(self._owners, default=0) + 1)
        self._place_numbers = itertools.count(max((place.number for place in self._places.values()), default=0) + 1)
        return connection

    def _open_in_memory(self) -> sqlite3.Connection:
        connection = open_database(None)
        self.space = Space(None, self._retention.max_bytes, self.space.batch)
        self.space.attach(connection)
        return connection

    def degrade(self, error: Exception) -> None:
        """Go on in memory. Runs on the writer's thread."""
        self._broken = None
        if self.path is None:
            return
        self._warn(error)
        try:
            self._connection.close()
        except sqlite3.Error:
            log.debug("closing the failed database failed too", exc_info=True)
        self._connection = self._open_in_memory()
        known = Batch(samples=[(key, sample) for key, samples in self.recent.items() for sample in samples])
        places = list(self._places.values())
        _transaction(self._connection, lambda connection: insert(connection, known))
        _transaction(self._connection, lambda connection: insert_places(connection, places))

    def _warn(self, error: Exception) -> None:
        self.warning = (
            f"The database {self.path} cannot be used ({error}). New data is kept in memory only and will be "
            "lost when the dashboard ends. The file was left as it is; mend the cause and restart."
        )[:256]
        self.path = None
        log.error("%s", self.warning)


def _patiently(work: Callable[[], None]) -> None:
    """Somebody else may hold the lock for a while, for example to make a copy: that is no reason to give up."""
    for _ in range(BUSY_TRIES):
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            log.warning("the database is locked by another program; waiting")
    return work()


def _transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
