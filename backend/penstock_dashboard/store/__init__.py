"""What the backend remembers. The event loop uses this object; the database is used by other threads only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.protocol import History

from ..settings import Limits
from .batch import Batch, CommandStored, EventRecord, LoaderRecord, Mark, RunChangeStored, RunPlace
from .database import (
    AskTheWriter,
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
from .samples import Sample
from .writer import Writer

__all__ = [
    "Batch",
    "Claim",
    "CommandStored",
    "CommandsAsked",
    "EventRecord",
    "EventsAsked",
    "HistoryAsked",
    "Known",
    "LinkStored",
    "LoaderRecord",
    "Mark",
    "RunChangeStored",
    "RunPlace",
    "Sample",
    "Store",
    "Unavailable",
]

T = TypeVar("T")


class Store:
    """The store as the rest of the backend sees it: what it is given is written soon."""

    def __init__(self, database: Database, commit: float, limits: Limits = Limits()) -> None:  # noqa: B008  frozen
        self.on_commit: Callable[[Batch, bool], None] = lambda _batch, _durable: None
        """Called on the loop with everything that has just been stored, and whether it outlives this process as far
        as was asked for.
        """
        self.on_warning: Callable[[], None] = lambda: None
        self._warned = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._limits = limits
        self._database = database
        self._writer = Writer(database, commit, self._committed)
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="penstock-read")
        self._room = asyncio.Event()
        self._owners: dict[str, int] = {}
        self.identity = ""
        """Which records these are: the same for all replicas that share them."""

    @property
    def warning(self) -> str:
        """Not empty: what is stored now is not kept as was asked for, and why."""
        return self._database.warning

    @property
    def in_memory(self) -> bool:
        return self._database.in_memory

    async def start(self) -> Known:
        """Begin to write; returns what is known from before."""
        self.loop = asyncio.get_running_loop()
        self._writer.start()
        self._warned = self.warning
        known = await self._read(lambda database: database.known(self._limits.snapshots))
        self._owners, self.identity = known.owners, known.identity
        return known

    async def stop(self) -> None:
        """When nobody reads any more, the writer ends."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._writer.end()

    def share_upkeep(self, share: Callable[[], tuple[int, int]]) -> None:
        """`share`: this replica's place among all that use the database, and how many there are."""
        self._database.share = share

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
        return self._database.dropped

    @property
    def most_written(self) -> int:
        """Bytes that the events of one message may take."""
        return self._database.most_written

    @property
    def most_loaders(self) -> int:
        """Loaders that one token may have, so that what must be kept of each fits into the database."""
        return max(16, self._database.cap // (8 * self._limits.hello))

    async def owner(self, token: str) -> int:
        """The number under which a token's records are filed."""
        if token not in self._owners:
            self._owners[token] = await self._on_writer(lambda database: database.owner(token))
        return self._owners[token]

    async def claim(self, loader: str, incarnation: str, owner: int, hello: bytes) -> Claim:
        """Take a loader's messages from now on; what came of it before is stored first. Nobody who claimed it before
        can store anything more of it.
        """
        future: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()

        def claimed(claim: Claim | Exception) -> None:
            if isinstance(claim, Exception):
                self._call(lambda: _fail(future, claim))
            else:
                self._call(lambda: _resolve(future, claim))

        self._writer.claim(Wanted(loader, incarnation, owner, hello, time.time()), claimed)
        return await future

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
        """Store the events of one message, (kind, JSON) each, and note that the message came: all or nothing. They
        have their numbers when they are stored. Spans may wait a little; the others are news.
        """
        records = [EventRecord(0, key, loader, at, kind, body, owner) for kind, body in events]

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

    async def put_place(self, run: str, place: str, change: RunChangeStored) -> RunPlace:
        """Give a run another place; returns what is stored."""
        return await self._on_writer(lambda database: database.put_place(run, place, change))

    def forget_commands(self, run: str) -> None:
        self._writer.add(lambda batch: batch.add_deleted(run))

    async def put_link(self, link: LinkStored) -> None:
        await self._on_writer(lambda database: database.put_link(link, self._limits.links))

    def put_link_now(self, link: LinkStored) -> None:
        """Before `start`, when there is no other thread yet."""
        self._database.put_link(link, self._limits.links)

    async def take_link(self, digest: str) -> LinkStored | None:
        return await self._on_writer(lambda database: database.take_link(digest))

    async def committed(self) -> None:
        """Return once everything handed over so far is stored."""
        self._writer.add(lambda _batch: None, 0.0)
        await self._on_writer(lambda _database: None)

    # ---------------------------------------------------------------------------------------------- reading

    async def history(self, asked: HistoryAsked) -> History:
        return await self._read(lambda database: database.history(asked))

    async def read_events(self, asked: EventsAsked) -> list[EventRecord]:
        return await self._read(lambda database: database.events(asked))

    async def past(
        self, key: int, loader: str, after: int, limit: int, most_bytes: int
    ) -> tuple[list[EventRecord], bool]:
        """The newest events after one, and whether they are all."""

        def read(database: Database) -> tuple[list[EventRecord], bool]:
            records = database.events(EventsAsked(key, loader, after, limit=limit, most_bytes=most_bytes))
            if not records:
                return [], True
            return records, not database.events(EventsAsked(key, loader, after, records[0].id, limit=1))

        return await self._read(read)

    async def commands(self, asked: CommandsAsked) -> list[CommandStored]:
        return await self._read(lambda database: database.commands(asked))

    async def open_commands(self, loader: str) -> list[CommandStored]:
        """The latest commands of a loader, newest first: among them those that are open."""
        return await self.commands(CommandsAsked(loader=loader, limit=2 * self._limits.open_commands))

    async def find_command(self, identifier: str) -> CommandStored | None:
        return await self._read(lambda database: database.command(identifier))

    async def run_changes(self, run: str | None, limit: int) -> list[bytes]:
        """What was done to runs, or to one, as JSON; the newest first."""
        return await self._read(lambda database: database.run_changes(run, limit))

    async def used_bytes(self) -> int:
        return await self._read(lambda database: database.used_bytes())

    async def _read(self, query: Callable[[Database], T]) -> T:
        """Ask off the loop: on a thread for readers, or on the writer's if only that can answer."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, query, self._database)
        except AskTheWriter:
            return await self._on_writer(query)

    async def _on_writer(self, query: Callable[[Database], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def job(database: Database) -> None:
            try:
                result = query(database)
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
