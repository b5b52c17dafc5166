"""The one thread that writes to the database.

The event loop adds to a batch and never waits. The thread takes the whole batch, stores it in one
transaction and reports it to the loop: only then are messages acknowledged, events shown and commands
delivered. How long a batch may wait is the caller's choice, call by call (`within`).

When SQLite fails (a full disk, a damaged file) the thread opens a database in memory, stores the same batch
there, and goes on; `warning` says so. Nothing else in the backend has to know.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..settings import Retention
from ..store import compaction
from ..store.batch import Batch, LoaderRecord, Mark
from ..store.samples import Sample
from ..store.schema import open_database

log = logging.getLogger("penstock.store")

BUSY_TRIES = 15
"""Times that the lock is waited for, 2 s each, before the file counts as unusable."""

Job = Callable[[sqlite3.Connection], None]


class Writer(threading.Thread):
    def __init__(
        self, path: Path | None, retention: Retention, commit: float, committed: Callable[[Batch, bool], None]
    ) -> None:
        super().__init__(name="penstock-store", daemon=True)
        self.path = path
        """None once the database is in memory."""
        self.warning = ""
        self.recent: dict[int, list[Sample]] = {}
        """Loader → its samples since the last compaction; the table of that name holds the same."""
        self._retention = retention
        self._commit = commit
        self._committed = committed
        self._condition = threading.Condition()
        self._batch = Batch()
        self._jobs: list[Job] = []
        self._due: float | None = None
        self._ending = False
        self._loaders: dict[int, LoaderRecord] = {}
        self._marks: dict[int, Mark] = {}
        self._connection = self._open()
        self._compacted = time.time()

    # ------------------------------------------------------------------------------------ called by the loop

    def add(self, change: Callable[[Batch], Any], within: float | None = None) -> None:
        """Change the waiting batch; it is stored `within` so many seconds."""
        with self._condition:
            change(self._batch)
            due = time.monotonic() + (self._commit if within is None else within)
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
            self.join(timeout=2.0)

    # ----------------------------------------------------------------------------------- on the writer thread

    def run(self) -> None:
        while True:
            with self._condition:
                while not (self._ending or self._jobs or self._is_due()):
                    self._condition.wait(1.0 if self._due is None else max(0.0, self._due - time.monotonic()))
                    if compaction.due(self._compacted, time.time()):
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
                self._committed(batch, bool(self.warning))
            for job in jobs:
                job(self._connection)
            if compaction.due(self._compacted, time.time()) or self._crowded():
                self._compact()
            if ending:
                self._close()
                return

    def _is_due(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def _crowded(self) -> bool:
        return sum(map(len, self.recent.values())) > compaction.MOST_RECENT

    def _store(self, batch: Batch) -> None:
        self._loaders.update(batch.loaders)
        self._marks.update(batch.marks)
        for key in batch.forgotten:
            self._loaders.pop(key, None)
            self._marks.pop(key, None)
            self.recent.pop(key, None)
        for key, sample in batch.samples:
            self.recent.setdefault(key, []).append(sample)
        self._attempt(lambda connection: _insert(connection, batch))

    def _compact(self) -> None:
        now = self._compacted = time.time()
        # A loader whose clock is ahead would keep its samples here for ever, so a crowd is taken whole.
        boundary = float("inf") if self._crowded() else now - now % compaction.INTERVAL
        done, rest = compaction.split(self.recent, boundary)
        self._attempt(lambda connection: compaction.compact(connection, done, rest, self._retention, now))
        # Only after the commit: a reader copies `recent` first and then reads older chunks only, so between
        # the commit and this line it sees every sample once.
        self.recent = rest

    def _attempt(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do something in a transaction; if the file fails, in a new database in memory."""
        try:
            _patiently(self._connection, work)
        except sqlite3.Error as error:
            if self.path is None:
                log.exception("the database in memory failed; this batch is dropped")
                return
            self.degrade(error)
            try:
                _transaction(self._connection, work)
            except sqlite3.Error:
                log.exception("the database in memory failed; this batch is dropped")

    def _open(self) -> sqlite3.Connection:
        try:
            connection = open_database(self.path)
            for key, at, rates in connection.execute("SELECT loader, at, rates FROM recent ORDER BY n"):
                self.recent.setdefault(key, []).append(Sample(at, rates))
            return connection
        except (sqlite3.Error, OSError) as error:
            self.recent.clear()
            self._warn(error)
            return open_database(None)

    def degrade(self, error: Exception) -> None:
        """Go on in memory. Runs on the writer thread."""
        if self.path is None:
            return
        self._warn(error)
        try:
            self._connection.close()
        except sqlite3.Error:
            log.debug("closing the failed database failed too", exc_info=True)
        self._connection = open_database(None)
        known = Batch(
            loaders=dict(self._loaders),
            marks=dict(self._marks),
            samples=[(key, sample) for key, samples in self.recent.items() for sample in samples],
        )
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


def _patiently(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
    """Somebody else may hold the lock for a while, for example to make a copy: that is no reason to give up."""
    for _ in range(BUSY_TRIES):
        try:
            return _transaction(connection, work)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            log.warning("the database is locked by another program; waiting")
    return _transaction(connection, work)


def _transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _insert(connection: sqlite3.Connection, batch: Batch) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO loaders (key, id, hello, snapshot, presence, seen) VALUES (?, ?, ?, ?, ?, ?)",
        [(r.key, r.id, r.hello, r.snapshot, r.presence, r.seen) for r in batch.loaders.values()],
    )
    connection.executemany(
        "INSERT INTO recent (loader, at, rates) VALUES (?, ?, ?)",
        [(key, sample.at, sample.rates) for key, sample in batch.samples],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO marks (key, incarnation, last_seq) VALUES (?, ?, ?)",
        [(key, mark.incarnation, mark.seq) for key, mark in batch.marks.items()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO events (id, loader, at, kind, body) VALUES (?, ?, ?, ?, ?)",
        [(r.id, r.key, r.at, r.kind, r.body) for r in batch.events],
    )
    connection.executemany(
        "INSERT INTO commands (id, loader, run, at, idempotency, request, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
        [(c.id, c.loader, c.run, c.at, c.idempotency, c.request, c.record) for c in batch.commands.values()],
    )
    for key in batch.forgotten:
        for table in ("loaders", "marks"):
            connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
        for table in ("recent", "chunks", "events"):
            connection.execute(f"DELETE FROM {table} WHERE loader = ?", (key,))
