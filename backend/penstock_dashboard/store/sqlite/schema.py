"""The database file: how it is opened, and how an older one is brought up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path

MIGRATIONS: tuple[str, ...] = (
    # 1: `recent` is a log in order of arrival, so that a commit touches few pages however many loaders there
    # are; once a minute it is emptied into `chunks`, one row per loader and tier.
    """
    CREATE TABLE loaders (
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, hello BLOB NOT NULL, snapshot BLOB,
        presence TEXT NOT NULL, seen REAL NOT NULL);
    CREATE TABLE marks (key INTEGER PRIMARY KEY, incarnation TEXT NOT NULL, last_seq INTEGER NOT NULL);
    CREATE TABLE recent (
        n INTEGER PRIMARY KEY, loader INTEGER NOT NULL, at REAL NOT NULL, rates BLOB NOT NULL);
    CREATE TABLE chunks (
        n INTEGER PRIMARY KEY, tier INTEGER NOT NULL, loader INTEGER NOT NULL, start REAL NOT NULL,
        stored REAL NOT NULL, rows BLOB NOT NULL);
    CREATE INDEX chunks_of_loader ON chunks (loader, tier, start);
    CREATE INDEX chunks_by_age ON chunks (tier, stored);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, loader INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
        body BLOB NOT NULL);
    CREATE INDEX events_of_loader ON events (loader, id);
    CREATE INDEX events_by_age ON events (kind, at);
    CREATE TABLE commands (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, loader TEXT NOT NULL, run TEXT NOT NULL,
        at REAL NOT NULL, idempotency TEXT NOT NULL, request TEXT NOT NULL, record BLOB NOT NULL);
    CREATE INDEX commands_of_loader ON commands (loader, n);
    CREATE INDEX commands_of_run ON commands (run, n);
    """,
    # 2: whose each record is, and how much each owner has: when there is too much, whoever has most loses most. Owner
    # 0 is everybody from before.
    """
    CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL DEFAULT 0);
    ALTER TABLE loaders ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE chunks ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE events ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;
    INSERT INTO owners (id, name, bytes) SELECT 0, '', coalesce((SELECT sum(length(body)) FROM events), 0)
        + coalesce((SELECT sum(length(rows)) FROM chunks), 0);
    DROP INDEX chunks_by_age;
    CREATE INDEX chunks_by_age ON chunks (owner, tier, stored);
    DROP INDEX events_by_age;
    CREATE INDEX events_by_age ON events (owner, kind, at);
    """,
    # 3: where a loader's run stands in the overview, and who put it there; deleted runs are in the log only.
    """
    ALTER TABLE loaders ADD COLUMN place TEXT NOT NULL DEFAULT 'shown';
    CREATE TABLE run_changes (n INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, record BLOB NOT NULL);
    """,
    # 4: the place of a run is the run's; the column of 3 is not used any more (SQLite before 3.35 cannot drop it).
    """
    CREATE TABLE places (run TEXT PRIMARY KEY, place TEXT NOT NULL, number INTEGER NOT NULL);
    INSERT OR IGNORE INTO places (run, place, number)
        SELECT substr(id, 1, instr(id, ':') - 1), place, key FROM loaders WHERE place != 'shown' ORDER BY seen DESC;
    """,
)


INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum`."""


class NewerDatabase(sqlite3.DatabaseError):
    """The file was written by a later version of Penstock."""


def open_database(path: Path | None) -> sqlite3.Connection:
    """Open the file for the one writer, or a database in memory, and bring its schema up to date."""
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        # The order matters: auto_vacuum only takes hold before the first table is made.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        # In WAL mode NORMAL survives the death of the process at any moment; a power cut may take the last
        # commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA busy_timeout = 2000")
        connection.execute("PRAGMA cache_size = -2048")
        migrate(connection)
        if connection.execute("PRAGMA auto_vacuum").fetchone() != (INCREMENTAL,):
            # Made by a program that did not ask for it: without it, the file would never get smaller.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA busy_timeout = 2000")
    connection.execute("PRAGMA cache_size = -1024")
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Apply what is missing; each step is one transaction, so an interrupted one is simply done again."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise NewerDatabase(f"its schema is version {version}, this Penstock knows up to {len(MIGRATIONS)}")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
