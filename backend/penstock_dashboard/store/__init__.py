"""What the backend remembers. The event loop uses this object; SQLite is used by other threads only."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ..settings import Limits, Retention
from ..store.batch import Batch, CommandStored, EventRecord, LoaderRecord, Mark, RunChangeStored
from ..store.records import last_event, read_loaders, read_owners
from ..store.samples import Sample
from ..store.schema import open_reader
from ..store.space import used_bytes
from ..store.writer import Writer

__all__ = ["Batch", "CommandStored", "EventRecord", "LoaderRecord", "Mark", "RunChangeStored", "Sample", "Store"]

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
    """The store as the rest of the backend sees it: what it is given is written soon."""

    def __init__(
        self,
        data: Path | None,
        retention: Retention,
        commit: float,
        limits: Limits = Limits(),  # noqa: B008  frozen
    ) -> None:
        self.retention = retention
        self.on_commit: Callable[[Batch, bool], None] = lambda _batch, _durable: None
        """Called on the loop with everything that has just been stored, and whether it outlives this process as far
        as was asked for.
        """
        self.on_warning: Callable[[], None] = lambda: None
        self._warned = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._limits = limits
        self._writer = Writer(data and data / FILE_NAME, retention, commit, self._committed, limits.batch)
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="penstock-read")
        self._local = threading.local()
        self._reading: list[sqlite3.Connection] = []
        self._room = asyncio.Event()
        self._owners: dict[str, int] = {}
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
        self._owners = await self.read(read_owners)
        return await self.read(lambda connection: read_loaders(connection, self._limits.snapshots))

    async def stop(self) -> None:
        """The last connection that is closed takes the log away with it: that of the writer, when all has ended."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._readers.shutdown(wait=True, cancel_futures=True)
        for connection in self._reading:
            connection.close()
        self._writer.end()

    # ---------------------------------------------------------------------------------------------- writing

    def has_room(self, owner: int) -> bool:
        return not self._writer.is_full(owner)

    async def room(self, owner: int) -> None:
        """Return once there is room for another message of this owner's loaders. Nobody has all of it, so that others
        need not wait for a flood to be stored.
        """
        while not self.has_room(owner):
            self._room.clear()
            await self._room.wait()

    @property
    def dropped(self) -> int:
        """Bytes of records that were dropped before their time, for want of space."""
        return self._writer.space.dropped

    @property
    def most_written(self) -> int:
        """Bytes that the events of one message may take."""
        return self._writer.space.most_written

    @property
    def most_loaders(self) -> int:
        """Loaders that one token may have, so that what must be kept of each fits into the file."""
        return max(16, self._writer.space.cap // (8 * self._limits.hello))

    def owner(self, name: str) -> int:
        """The number under which a token's records are filed."""
        if name not in self._owners:
            number = self._owners[name] = max(self._owners.values(), default=0) + 1
            self._writer.add(lambda batch: batch.owners.__setitem__(number, name))
        return self._owners[name]

    def owner_name(self, number: int) -> str:
        return next((name for name, known in self._owners.items() if known == number), "")

    def sample(self, key: int, owner: int, sample: Sample, mark: Mark) -> None:
        def change(batch: Batch) -> None:
            batch.add_sample(key, owner, sample)
            batch.add_mark(key, mark)

        self._writer.add(change)

    def mark(self, key: int, mark: Mark, within: float | None = None) -> None:
        self._writer.add(lambda batch: batch.add_mark(key, mark), within)

    def events(
        self, key: int, owner: int, loader: str, at: float, events: Sequence[tuple[str, bytes]], mark: Mark
    ) -> None:
        """Store the events of one message, (kind, JSON) each, number them, and note that the message came: all or
        nothing. Spans may wait a little; the others are news.
        """
        first = self.last_event + 1
        self.last_event += len(events)
        records = [EventRecord(first + n, key, loader, at, kind, body, owner) for n, (kind, body) in enumerate(events)]

        def change(batch: Batch) -> None:
            for record in records:
                batch.add_event(record)
            batch.add_mark(key, mark)

        self._writer.add(change, 0.25 if all(kind == "spans" for kind, _ in events) else 0.02)

    def loader(self, record: LoaderRecord) -> None:
        self._writer.add(lambda batch: batch.add_loader(record), 0.1)

    def forget(self, key: int) -> None:
        self._writer.add(lambda batch: batch.add_forgotten(key))

    def command(self, stored: CommandStored) -> None:
        self._writer.add(lambda batch: batch.add_command(stored), 0.0)

    def run_changed(self, stored: RunChangeStored) -> None:
        self._writer.add(lambda batch: batch.add_change(stored), 0.0)

    def forget_commands(self, run: str) -> None:
        self._writer.add(lambda batch: batch.add_deleted(run))

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
        return await self.read(used_bytes)

    def _on_reader(self, path: Path, query: Callable[[sqlite3.Connection], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(path)
            self._reading.append(connection)
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

    def _committed(self, batch: Batch, durable: bool) -> None:
        def report() -> None:
            self._room.set()
            self.on_commit(batch, durable)
            if self._warned != self.warning:
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
