"""The one thread that writes to the database.

The event loop adds to a batch and never waits. The thread takes the whole batch, stores it in one
transaction and reports it to the loop: only then are messages acknowledged, events shown and commands
delivered. How long a batch may wait is the caller's choice, call by call (`within`). A batch that has grown to
`space.batch` bytes is due at once, and nothing more should be added to it: whoever reads from loaders looks
(`is_full`).

When SQLite fails (a full disk, a damaged file) the thread opens a database in memory, stores the same batch
there, and goes on; `warning` says so, and what is stored from then on is reported as not durable.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..settings import Limits, Retention
from ..store import compaction
from ..store.batch import Batch, LoaderRecord
from ..store.samples import Sample
from ..store.schema import open_database
from ..store.space import Space, charge, is_busy

log = logging.getLogger("penstock.store")

BUSY_TRIES = 15
"""Times that the lock is waited for, 2 s each, before the file counts as unusable."""
FULL_TRIES = 4
"""Times that more room is made when SQLite finds too little."""
END_WITHIN = 10.0
"""Seconds that the thread has to store what waits when it shall end."""

Job = Callable[[sqlite3.Connection], None]
Work = Callable[[sqlite3.Connection], None]


class Writer(threading.Thread):
    """The thread that writes, and the connection that it writes with."""

    def __init__(
        self,
        path: Path | None,
        retention: Retention,
        commit: float,
        committed: Callable[[Batch, bool], None],
        batch: int = Limits().batch,
    ) -> None:
        super().__init__(name="penstock-store", daemon=True)
        self.path = path
        """None once the database is in memory."""
        self.warning = ""
        self.recent: dict[int, list[Sample]] = {}
        """Loader → its samples since the last compaction; the table of that name holds the same."""
        self.space = Space(path, retention.max_bytes, batch)
        self._retention = retention
        self._commit = commit
        self._committed = committed
        self._condition = threading.Condition()
        self._batch = Batch()
        self._jobs: list[Job] = []
        self._due: float | None = None
        self._ending = False
        self._owners: dict[int, int] = {}
        """Loader → its owner."""
        self._later: dict[int, LoaderRecord] = {}
        """Loaders as they are known by now, to be stored when there is nothing more urgent."""
        self._later_sizes: dict[int, int] = {}
        """Owner → bytes of them."""
        self._connection = self._open()
        self._compacted = time.time()

    # ------------------------------------------------------------------------------------ called by the loop

    @property
    def full(self) -> bool:
        """So much waits that nothing more should be added."""
        return self._batch.size >= self.space.batch

    def is_full(self, owner: int) -> bool:
        """So much of this owner's waits, or of all, that nothing more of its should be added."""
        share = self._batch.shares.get(owner, 0) + self._later_sizes.get(owner, 0)
        return share >= self.space.batch // 2 or self.full

    def add(self, change: Callable[[Batch], Any], within: float | None = None) -> None:
        """Change the waiting batch; it is stored `within` so many seconds."""
        with self._condition:
            change(self._batch)
            soon = self._commit if within is None else within
            due = time.monotonic() + (0.0 if self.full else soon)
            if self._due is None or due < self._due:
                self._due = due
                self._condition.notify()

    def run_job(self, job: Job) -> None:
        """Run something on the writer's connection, between two transactions."""
        with self._condition:
            self._jobs.append(job)
            self._condition.notify()

    def end(self) -> None:
        """Store what waits, then stop."""
        with self._condition:
            self._ending = True
            self._condition.notify()
        if self.is_alive():
            self.join(timeout=END_WITHIN)

    # ----------------------------------------------------------------------------------- on the writer thread

    def run(self) -> None:
        while True:
            with self._condition:
                while not (self._ending or self._jobs or self._is_due() or self._later or self.space.untidy):
                    self._condition.wait(1.0 if self._due is None else max(0.0, self._due - time.monotonic()))
                    if self._due is None or compaction.due(self._compacted, time.time()):
                        break
                batch, jobs = self._batch, self._jobs
                self._jobs = []
                if self._is_due() or self._ending:
                    self._batch, self._due = Batch(), None
                else:
                    batch = Batch()
                ending = self._ending
            if batch:
                self._store(batch)
                self._committed(batch, not self.warning)
            for job in jobs:
                job(self._connection)
            self._store_loaders(all_of_them=ending)
            if compaction.due(self._compacted, time.time()) or self._crowded():
                self._compact()
            if ending:
                self._close()
                return
            self._guarded(lambda connection: _patiently(lambda: self.space.tidy(connection)))

    def _is_due(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def _crowded(self) -> bool:
        return sum(map(len, self.recent.values())) > self.space.most_samples

    def _store(self, batch: Batch) -> None:
        """Messages, whole, with the marks that say so. Before them only who a new loader is: what else is known of
        loaders may be large, and others should not wait for it.
        """
        for key in batch.forgotten:
            self._owners.pop(key, None)
            self.recent.pop(key, None)
            self._later.pop(key, None)
        for key, sample in batch.samples:
            self.recent.setdefault(key, []).append(sample)
        if batch.owners:
            self._attempt(lambda connection: _insert_owners(connection, batch.owners))
        new = [_bare(record) for key, record in batch.loaders.items() if key not in self._owners]
        if new:
            self._attempt(lambda connection: _insert_loaders(connection, new), _size(new))
        self._owners.update((key, record.owner) for key, record in batch.loaders.items())
        self._later.update(batch.loaders)
        self._attempt(lambda connection: _insert(connection, batch), batch.size)
        for key in batch.forgotten:
            self.space.forgotten(key)
        self._weigh_later()

    def _store_loaders(self, all_of_them: bool) -> None:
        """Some of the loaders that wait."""
        while self._later:
            records: list[LoaderRecord] = []
            while self._later and _size(records) < self.space.batch // 2:
                records.append(self._later.pop(next(iter(self._later))))
            self._attempt(partial(_insert_loaders, records=records), _size(records))
            for record in records:
                self.space.stored(record)
            self._weigh_later()
            self._committed(Batch(), not self.warning)  # there is room again
            if not all_of_them:
                break

    def _weigh_later(self) -> None:
        sizes: dict[int, int] = {}
        for record in self._later.values():
            sizes[record.owner] = sizes.get(record.owner, 0) + record.size
        self._later_sizes = sizes

    def _compact(self) -> None:
        now = self._compacted = time.time()
        # A loader whose clock is ahead would keep its samples here for ever, so a crowd is taken whole.
        boundary = float("inf") if self._crowded() else now - now % compaction.INTERVAL
        done, rest = compaction.split(self.recent, boundary)
        for part in compaction.in_parts(done, self.space.batch):
            size = sum(map(compaction.size_of, part.values()))
            self._attempt(partial(compaction.compact, done=part, rest=rest, owners=self._owners, now=now), size)
            # Only after the commit: a reader copies `recent` first and then reads older chunks only, so between
            # the commit and this line it sees every sample once.
            left = {key: rest[key] for key in part if key in rest}
            self.recent = {key: samples for key, samples in self.recent.items() if key not in part} | left
        self._attempt(lambda connection: compaction.expire(connection, self._retention, now))

    def _attempt(self, work: Work, size: int = 0) -> None:
        """Do something in a transaction of so many bytes; if the file fails, in a new database in memory."""
        if self._guarded(lambda connection: self._fitting(connection, work, size)):
            return
        self._guarded(lambda connection: self._fitting(connection, work, size))

    def _fitting(self, connection: sqlite3.Connection, work: Work, size: int) -> None:
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
            self._owners = dict(connection.execute("SELECT key, owner FROM loaders").fetchall())
            return connection
        except (sqlite3.Error, OSError) as error:
            self.recent.clear()
            self._warn(error)
            return self._open_in_memory()

    def _open_in_memory(self) -> sqlite3.Connection:
        connection = open_database(None)
        self.space = Space(None, self._retention.max_bytes, self.space.batch)
        self.space.attach(connection)
        return connection

    def degrade(self, error: Exception) -> None:
        """Go on in memory. Runs on the writer thread."""
        if self.path is None:
            return
        self._warn(error)
        try:
            self._connection.close()
        except sqlite3.Error:
            log.debug("closing the failed database failed too", exc_info=True)
        self._connection = self._open_in_memory()
        known = Batch(samples=[(key, sample) for key, samples in self.recent.items() for sample in samples])
        _transaction(self._connection, lambda connection: _insert(connection, known))

    def _warn(self, error: Exception) -> None:
        self.warning = (
            f"The database {self.path} cannot be used ({error}). New data is kept in memory only and will be "
            "lost when the dashboard ends. The file was left as it is; mend the cause and restart."
        )[:256]
        self.path = None
        log.error("%s", self.warning)

    def _close(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error:
            log.exception("closing the database failed")


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


def _transaction(connection: sqlite3.Connection, work: Work) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _size(records: list[LoaderRecord]) -> int:
    return sum(record.size for record in records)


def _bare(record: LoaderRecord) -> LoaderRecord:
    return msgspec.structs.replace(record, snapshot=None)


def _insert_owners(connection: sqlite3.Connection, owners: dict[int, str]) -> None:
    connection.executemany(
        "INSERT INTO owners (id, name) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        list(owners.items()),
    )


def _insert_loaders(connection: sqlite3.Connection, records: list[LoaderRecord]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO loaders (key, id, hello, snapshot, presence, seen, owner, place) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(r.key, r.id, r.hello, r.snapshot, r.presence, r.seen, r.owner, r.place) for r in records],
    )


def _insert(connection: sqlite3.Connection, batch: Batch) -> None:
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
        _forget(connection, key)
    connection.executemany("DELETE FROM commands WHERE run = ?", [(run,) for run in batch.deleted])
    connection.executemany(
        "INSERT INTO run_changes (at, run, record) VALUES (?, ?, ?)", [(c.at, c.run, c.record) for c in batch.changes]
    )


def _forget(connection: sqlite3.Connection, key: int) -> None:
    for table, bulk in (("events", "body"), ("chunks", "rows")):
        for owner, size in connection.execute(
            f"SELECT owner, sum(length({bulk})) FROM {table} WHERE loader = ? GROUP BY owner", (key,)
        ).fetchall():
            charge(connection, owner, -size)
    for table in ("loaders", "marks"):
        connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
    for table in ("recent", "chunks", "events"):
        connection.execute(f"DELETE FROM {table} WHERE loader = ?", (key,))
