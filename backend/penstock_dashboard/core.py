"""The parts of the backend, put together, and the clockwork that moves them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator

import msgspec
from penstock.protocol import Session

from .commands import CommandBook
from .hub import Connection, Hub
from .ingest import POLICY, TOKEN_GONE, Publishers
from .refusals import Refusals, Refused
from .registry import Entry, Registry
from .security.tokens import Token
from .settings import VERSION, Settings
from .store import Batch, Store
from .store.records import read_commands

log = logging.getLogger("penstock")

IDEMPOTENCY_KEPT = 86400.0
"""Seconds for which an Idempotency-Key is remembered across restarts."""


class Counters(msgspec.Struct):
    """What came in since the start."""

    messages: int = 0
    bytes: int = 0
    events: int = 0
    bad_messages: int = 0
    repeated: int = 0
    """Messages that had come before, after a lost connection."""
    refused_connections: int = 0


class Present:
    """Websockets of one kind that are open, those that have not said hello included; token by token."""

    def __init__(self) -> None:
        self.all = 0
        self._by_token: dict[str, int] = {}

    def of(self, token: str) -> int:
        return self._by_token.get(token, 0)

    @contextlib.contextmanager
    def taken(self, token: str) -> Iterator[None]:
        self.all += 1
        self._by_token[token] = self.of(token) + 1
        try:
            yield
        finally:
            self.all -= 1
            self._by_token[token] -= 1
            if not self._by_token[token]:
                del self._by_token[token]


class Backend:
    """The parts of the backend, put together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = secrets.token_hex(6)
        """New for every start."""
        self.started = time.time()
        self.counters = Counters()
        self.refusals = Refusals()
        self.seats_of_publishers = Present()
        self.seats_of_viewers = Present()
        self.store = Store(settings.data, settings.retention, settings.timing.commit, settings.limits)
        self.registry = Registry(settings.limits, settings.timing)
        self.registry.most_per_token = min(self.registry.most_per_token, self.store.most_loaders)
        self.hub = Hub(self.registry, settings.limits)
        self.publishers = Publishers(settings.limits)
        self.commands = CommandBook(settings.limits, settings.timing, self.store.command, self.hub.command)
        self.viewers: dict[Connection, Token] = {}
        self.on_idle: Callable[[], None] = lambda: None
        """Called once when nobody has been connected for as long as the settings say."""
        self.admits: Callable[[Token], bool] = lambda _token: True
        """Whether a token still holds."""
        self._busy_at = time.monotonic()
        self._clockwork: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.store.on_commit = self._committed
        self.store.on_warning = self._warn
        self.registry.on_forgotten = self._forgotten
        self.registry.restore(await self.store.start())
        self.hub.newest_event = self.store.last_event
        since = time.time() - IDEMPOTENCY_KEPT
        stored = await self.store.read(lambda connection: read_commands(connection, since=since, limit=20_000))
        self.commands.restore(stored[::-1])
        self._clockwork = [
            asyncio.create_task(self._every(lambda: 0.5, self._sweep)),
            asyncio.create_task(self._every(lambda: self.settings.timing.acknowledge, self.publishers.acknowledge)),
            asyncio.create_task(self._every(self._overview_interval, self.hub.tick)),
        ]

    async def stop(self) -> None:
        for task in self._clockwork:
            task.cancel()
        for entry in self.registry:
            if entry.connected:
                self.store.loader(entry.record())
        await self.store.stop()

    # ------------------------------------------------------------------------------------- loaders and
    # viewers

    def connected(self, entry: Entry) -> None:
        entry.presence = "connected"
        entry.heard = time.monotonic()
        entry.seen = time.time()
        self.store.loader(entry.record())
        self.hub.changed(entry)
        self.commands.deliver(entry, anew=True)

    def disconnected(self, entry: Entry) -> None:
        self._busy_at = time.monotonic()
        if entry.presence == "connected":
            entry.presence = "stale"
        entry.leave()
        self.store.loader(entry.record())
        self.hub.changed(entry)

    def session(self, token: Token) -> Session:
        scopes = [scope for scope in token.scopes if scope != "control" or not self.settings.read_only]
        return Session(
            backend=self.instance,
            version=VERSION,
            at=time.time(),
            scopes=scopes,
            read_only=self.settings.read_only or "control" not in token.scopes,
            warning=self.warning,
        )

    @property
    def warning(self) -> str:
        """What people should know: that the store fell back to memory, or what was refused lately."""
        return self.store.warning or self.settings.notice or self.refusals.told

    def refuse(self, what: Refused) -> None:
        """Something was refused because a limit was reached: it is said for a while."""
        self.refusals.note(what)
        self._tell_refusals()

    def _tell_refusals(self) -> None:
        if self.refusals.tell():
            self._warn()

    # -----------------------------------------------------------------------------------------------
    # clockwork

    async def _every(self, interval: Callable[[], float], work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(interval())
            try:
                work()
            except Exception:
                log.exception("a periodic task failed; it goes on")

    def _overview_interval(self) -> float:
        return self.settings.timing.overview * (1 if len(self.registry) <= 100 else 2)

    def _sweep(self) -> None:
        now = time.monotonic()
        for entry in self.registry.sweep(now, self.settings.retention.minutes):
            if entry.presence == "lost":
                self.store.loader(entry.record())
                self.commands.ended(entry, "the loader was lost")
            self.hub.changed(entry)
        self.commands.sweep()
        self._tell_refusals()
        self._expel()
        if len(self.publishers) or self.viewers:
            self._busy_at = now
        elif self.settings.exit_when_idle is not None and now - self._busy_at > self.settings.exit_when_idle:
            self._busy_at = float("inf")
            self.on_idle()

    def _expel(self) -> None:
        """End the connections of tokens that were taken away."""
        for connection, token in self.viewers.items():
            if not self.admits(token):
                connection.close(TOKEN_GONE)
        for publisher in self.publishers:
            if not self.admits(publisher.token):
                publisher.close(POLICY, TOKEN_GONE)

    def _committed(self, batch: Batch, durable: bool) -> None:
        self.hub.events(batch.events)
        if durable:  # what is not, the loader keeps, and sends again to a dashboard that has been mended
            self.publishers.committed(batch.marks)

    def _forgotten(self, entry: Entry) -> None:
        self.store.forget(entry.key)
        self.hub.removed(entry)

    def _warn(self) -> None:
        for connection, token in self.viewers.items():
            connection.tell(self.session(token))
