"""How much the database may take, held at every commit.

    --max-size ─┬─ the file: `cap`, which SQLite itself does not go beyond (`max_page_count`)
                └─ `reserve`: for the write-ahead log

1. A transaction is at most `batch` bytes and one message, so that the log has room for it. Before one begins there is
   room for it in the file (`make_room`), which is made by dropping old records in transactions of their own.
2. After each transaction the log is emptied into the file if it has grown (`checkpoint`). While somebody else reads
   the database that may fail; then nothing is written until it succeeds (`ready`).
3. Pages that became free are filled again; if there are many, some are given back to the disk at a time (`tidy`).

What goes first is of the owner who has most: spans, then full-resolution samples, 10 s buckets, last snapshots, other
events, and the rest; the oldest of each first, and those of runs that are pinned after all the others. So nobody can
push out others' records beyond an equal share of all. Commands count as one more owner.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

from ...settings import Limits
from ..batch import ROW, LoaderRecord

log = logging.getLogger("penstock.store")

MIN_RESERVE = 5 << 20
"""For the largest message that there can be, written out, and the pages that it touches."""
MAX_RESERVE = 64 << 20
MIN_SIZE = 8 << 20
"""The smallest `--max-size`."""
IN_MEMORY = 64 << 20
"""The most that a database in memory may take, whatever was asked for."""
MOST_WRITTEN = 4 << 20
"""Bytes of all events of one message as JSON. MessagePack is denser, but an ordinary message is far from this."""
COMMANDS = -1
"""Stands for the owner of all commands."""
STEP = 512
"""Pages given back at a time."""
TIDY = 0.1
"""Seconds for which pages are given back before others have their turn."""

EVENTS, CHUNKS = ("events", "id", "body"), ("chunks", "n", "rows")
VICTIMS = (
    (*EVENTS, "kind = 'spans'"),
    (*CHUNKS, "tier = 0"),
    (*CHUNKS, "tier = 1"),
    (*EVENTS, "kind != 'spans'"),
    (*CHUNKS, "tier = 2"),
)
"""Table, number, what is bulky in it, which rows: in the order in which they go. Snapshots go before other events."""
SNAPSHOTS_AFTER = 3
PINNED = (
    "(SELECT key FROM loaders, places WHERE places.place = 'pinned' AND id >= places.run || ':' "
    "AND id < places.run || ';')"
)
"""Loaders of runs that somebody wants to keep."""


class LogHeld(sqlite3.OperationalError):
    """Another program reads the database, so that its log cannot be emptied."""


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Somebody else has the lock: it will be given back."""
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(error, LogHeld) or error.sqlite_errorcode & 0xFF in busy


class Space:
    """Keeps the database and its log within a size."""

    def __init__(self, path: Path | None, most: int, batch: int = Limits().batch) -> None:
        self._path = path
        if path is None:
            self.reserve = 0
            self.cap = min(most, IN_MEMORY)
        else:
            self.reserve = max(MIN_RESERVE, min(most // 16, MAX_RESERVE))
            self.cap = max(most, MIN_SIZE) - self.reserve
        self.batch = max(512 << 10, min(batch, self.cap // 8))
        self.most_samples = max(1000, min(120_000, self.cap // 4 // ROW))
        """Samples of all loaders that may wait for compaction."""
        self.most_written = min(MOST_WRITTEN, self.cap // 4)
        """Bytes of one message's events, as they are stored."""
        self.dropped = 0
        """Bytes of records that were dropped before their time."""
        self.untidy = False
        """`tidy` has more to do."""
        self._log_size = self.reserve // 5
        """Bytes from which on the log is emptied."""
        self._loaders: dict[int, tuple[int, int]] = {}
        """Loader → its owner, and the size of its record."""
        self._page = 4096

    def attach(self, connection: sqlite3.Connection) -> None:
        """Set the limits on the writer's connection, and learn what is there."""
        (self._page,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {self.cap // self._page}").fetchone()
        if self._path is not None:
            connection.execute("PRAGMA wal_autocheckpoint = 0").fetchone()  # `checkpoint` does it
            connection.execute(f"PRAGMA journal_size_limit = {self._log_size}").fetchone()
        self._loaders = {
            key: (owner, size)
            for key, owner, size in connection.execute(
                "SELECT key, owner, length(hello) + coalesce(length(snapshot), 0) FROM loaders"
            )
        }

    # --------------------------------------------------------------------------------------------- accounting

    def stored(self, record: LoaderRecord) -> None:
        self._loaders[record.key] = (record.owner, record.size)

    def forgotten(self, key: int) -> None:
        self._loaders.pop(key, None)

    def used(self, connection: sqlite3.Connection) -> dict[int, int]:
        """Owner → bytes of its records."""
        used: dict[int, int] = dict(connection.execute("SELECT id, bytes FROM owners").fetchall())
        for owner, size in self._loaders.values():
            used[owner] = used.get(owner, 0) + size
        (commands,) = connection.execute("SELECT coalesce(sum(length(record)), 0) FROM commands").fetchone()
        used[COMMANDS] = commands
        return used

    # ------------------------------------------------------------------------------------------ on the file

    def room(self, connection: sqlite3.Connection) -> int:
        """Bytes of pages that may still be filled."""
        pages, free = self._pages(connection)
        return int((self.cap // self._page - pages + free) * self._page)

    def make_room(self, connection: sqlite3.Connection, size: int) -> None:
        """Drop old records until so many bytes of new ones fit; at the most, half of the file is made free."""
        need = min(size + size // 8 + 64 * self._page, self.cap // 2)
        if self.room(connection) >= need:
            return
        need += self.cap // 16  # and some more, so that this is not done for every batch
        while self.room(connection) < need and self._drop_some(connection):
            self.checkpoint(connection)

    def ready(self, connection: sqlite3.Connection) -> None:
        """Raise `LogHeld` if the log is too long for another transaction, and cannot be emptied now."""
        self.checkpoint(connection)
        if self._log_bytes() > self.reserve:
            raise LogHeld("another program reads the database, and its log must not grow any more")

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        """Empty the log if it has grown and nobody reads."""
        if self._log_bytes() > self._log_size:
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise

    def tidy(self, connection: sqlite3.Connection) -> None:
        """Give pages back to the disk, for a moment, if many are free or the file is too large. `untidy` says whether
        some are left.
        """
        end = time.monotonic() + TIDY
        while time.monotonic() < end:
            pages, free = self._pages(connection)
            excess = pages * self._page > self.cap  # a file from before, or with a smaller --max-size than before
            if excess and not free and not self._drop_some(connection):
                self.untidy = False  # what is left must be kept
                return
            if not excess and free <= max(pages // 4, STEP):
                self.untidy = False
                return
            self.untidy = True
            # As a script: `execute` would take one step, and each step gives back one page.
            connection.executescript(f"PRAGMA incremental_vacuum({STEP})")
            connection.execute(f"PRAGMA max_page_count = {self.cap // self._page}").fetchone()
            self.checkpoint(connection)

    def _pages(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """All of the file, and those that are free."""
        pages, free = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
        return pages, free

    def _log_bytes(self) -> int:
        if self._path is None:
            return 0
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except OSError:
            return 0

    # ---------------------------------------------------------------------------------------------- dropping

    def _drop_some(self, connection: sqlite3.Connection) -> bool:
        """Drop a quarter of one kind of records of whoever has most; False if nothing is left to drop."""
        used = self.used(connection)
        for owner in sorted(used, key=lambda owner: -used[owner]):
            connection.execute("BEGIN IMMEDIATE")
            try:
                dropped = self._drop_commands(connection) if owner == COMMANDS else self._drop(connection, owner)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if dropped:
                self.dropped += dropped
                return True
        return False

    def _drop(self, connection: sqlite3.Connection, owner: int) -> int:
        return self._drop_of(connection, owner, f"NOT IN {PINNED}") or self._drop_of(connection, owner, f"IN {PINNED}")

    def _drop_of(self, connection: sqlite3.Connection, owner: int, whose: str) -> int:
        """`whose`: a condition on loaders."""
        for place, (table, number, bulk, kind) in enumerate(VICTIMS):
            if place == SNAPSHOTS_AFTER and (dropped := self._drop_snapshots(connection, owner, whose)):
                return dropped
            old, which = "at" if table == "events" else "stored", f"{kind} AND loader {whose}"
            (count,) = connection.execute(
                f"SELECT count(*) FROM {table} WHERE owner = ? AND {which}", (owner,)
            ).fetchone()
            if count:
                oldest = f"SELECT {number} FROM {table} WHERE owner = ? AND {which} ORDER BY {old} LIMIT ?"
                return drop(connection, table, owner, bulk, f"{number} IN ({oldest})", (owner, count // 4 + 1))
        return 0

    def _drop_snapshots(self, connection: sqlite3.Connection, owner: int, whose: str) -> int:
        mine = f"SELECT key FROM loaders WHERE owner = ? AND snapshot IS NOT NULL AND key {whose}"
        (count,) = connection.execute(f"SELECT count(*) FROM ({mine})", (owner,)).fetchone()
        dropped = 0
        for (key,) in connection.execute(f"{mine} ORDER BY seen LIMIT ?", (owner, count // 4 + 1)).fetchall():
            (hello, snapshot) = connection.execute(
                "SELECT length(hello), length(snapshot) FROM loaders WHERE key = ?", (key,)
            ).fetchone()
            connection.execute("UPDATE loaders SET snapshot = NULL WHERE key = ?", (key,))
            self._loaders[key] = (owner, hello)
            dropped += snapshot
        return dropped

    def _drop_commands(self, connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT count(*) FROM commands").fetchone()
        oldest = "n IN (SELECT n FROM commands ORDER BY n LIMIT ?)"
        (size,) = connection.execute(
            f"SELECT coalesce(sum(length(record)), 0) FROM commands WHERE {oldest}", (count // 4 + 1,)
        ).fetchone()
        connection.execute(f"DELETE FROM commands WHERE {oldest}", (count // 4 + 1,))
        return int(size)


def drop(
    connection: sqlite3.Connection, table: str, owner: int, bulk: str, which: str, values: tuple[object, ...]
) -> int:
    """Delete records of one owner and take them off its account; returns their bytes. Runs in a transaction."""
    (size,) = connection.execute(
        f"SELECT coalesce(sum(length({bulk})), 0) FROM {table} WHERE {which}", values
    ).fetchone()
    connection.execute(f"DELETE FROM {table} WHERE {which}", values)
    charge(connection, owner, -size)
    return int(size)


def charge(connection: sqlite3.Connection, owner: int, size: int) -> None:
    """Put bytes of events or chunks on an owner's account. Runs in a transaction."""
    connection.execute(
        "INSERT INTO owners (id, name, bytes) VALUES (?, ?, max(0, ?)) "
        "ON CONFLICT (id) DO UPDATE SET bytes = max(0, bytes + ?)",
        (owner, f"#{owner}" if owner else "", size, size),
    )


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of pages in use."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)
