"""What the backend remembers. The event loop uses this object; SQLite is used by other threads only."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..settings import Retention
from ..store import compaction
from ..store.batch import Batch, CommandStored, EventRecord, LoaderRecord, Mark
from ..store.records import last_event, read_loaders
from ..store.samples import Sample
from ..store.schema import open_reader
from ..store.writer import Writer

__all__ = ["Batch", "CommandStored", "EventRecord", "LoaderRecord", "Mark", "Sample", "Store"]

T = TypeVar("T")

FILE_NAME = "penstock.db"

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


class Store:
    def __init__(self, data: Path | None, retention: Retention, commit: float) -> None:
        self.retention = retention
        self.on_commit: Callable[[Batch], None] = lambda _batch: None
        """Called on the loop with everything that has just been stored."""
        self.on_warning: Callable[[], None] = lambda: None
        self._warned = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._writer = Writer(data and data / FILE_NAME, retention, commit, self._committed)
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="penstock-read")
        self._local = threading.local()
        self.last_event = 0
        """Number of the last event that was given one."""

    @property
    def warning(self) -> str:
        """Not empty: the store fell back to memory, and why."""
        return self._writer.warning

    @property
    def in_memory(self) -> bool:
        return self._writer.path is None

    async def start(self) -> list[tuple[LoaderRecord, Mark]]:
        """Begin to write; returns the loaders known from before."""
        self.loop = asyncio.get_running_loop()
        self._writer.start()
        self._warned = self.warning
        self.last_event = await self.read(last_event)
        return await self.read(read_loaders)

    async def stop(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._writer.end)

    # ---------------------------------------------------------------------------------------------- writing

    def sample(self, key: int, sample: Sample, mark: Mark) -> None:
        def change(batch: Batch) -> None:
            batch.samples.append((key, sample))
            batch.marks[key] = mark

        self._writer.add(change)

    def mark(self, key: int, mark: Mark, within: float | None = None) -> None:
        self._writer.add(lambda batch: batch.marks.__setitem__(key, mark), within)

    def event(self, key: int, loader: str, at: float, kind: str, body: bytes) -> int:
        """Store an event and give it its number. Spans may wait a little; the others are news."""
        self.last_event += 1
        record = EventRecord(self.last_event, key, loader, at, kind, body)
        self._writer.add(lambda batch: batch.events.append(record), 0.25 if kind == "spans" else 0.02)
        return record.id

    def loader(self, record: LoaderRecord) -> None:
        self._writer.add(lambda batch: batch.loaders.__setitem__(record.key, record), 0.1)

    def forget(self, key: int) -> None:
        self._writer.add(lambda batch: batch.forgotten.append(key))

    def command(self, stored: CommandStored) -> None:
        self._writer.add(lambda batch: batch.commands.__setitem__(stored.id, stored), 0.0)

    async def committed(self) -> None:
        """Return once everything handed over so far is stored."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_connection: sqlite3.Connection) -> None:
            self._call(lambda: _resolve(future, None))

        self._writer.add(lambda _batch: None, 0.0)
        self._writer.run_job(done)
        await future

    # ---------------------------------------------------------------------------------------------- reading

    def recent(self, key: int) -> list[Sample]:
        """Samples that no compaction has reached yet."""
        return list(self._writer.recent.get(key, ()))

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query off the loop: on a reader's own connection, or on the writer's if all is in memory."""
        path = self._writer.path
        if path is not None:
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(self._readers, self._on_reader, path, query)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in BROKEN:
                    raise
                failure = error
                self._writer.run_job(lambda _connection: self._writer.degrade(failure))
                await self.committed()
        return await self._on_writer(query)

    async def used_bytes(self) -> int:
        return await self.read(compaction.used_bytes)

    def _on_reader(self, path: Path, query: Callable[[sqlite3.Connection], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(path)
        return query(connection)

    async def _on_writer(self, query: Callable[[sqlite3.Connection], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def job(connection: sqlite3.Connection) -> None:
            try:
                result = query(connection)
            except Exception as error:
                failure = error
                self._call(lambda: _fail(future, failure))
            else:
                self._call(lambda: _resolve(future, result))

        self._writer.run_job(job)
        return await future

    # ------------------------------------------------------------------------------------- from other threads

    def _committed(self, batch: Batch, degraded: bool) -> None:
        def report() -> None:
            self.on_commit(batch)
            if degraded and self._warned != self.warning:
                self._warned = self.warning
                self.on_warning()

        self._call(report)

    def _call(self, what: Callable[[], object]) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(what)


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # its waiter may have been cancelled
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
