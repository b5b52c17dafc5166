"""The parts of the backend, put together, and the clockwork that moves them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec
from penstock.protocol import Alerts, CommandRecord, Session

from .alerts.lookout import Lookout
from .bus import Bus
from .bus.alone import InProcess
from .commands import KEYS_KEPT, CommandBook
from .hub import Connection, Hub
from .ingest import POLICY, TOKEN_GONE, Publisher, Publishers
from .pacing import LINGER, Pacing
from .refusals import Refusals, Refused
from .registry import Entry, Registry
from .replicas import Replicas
from .runs import Runs
from .security.tokens import Token
from .settings import VERSION, Settings
from .store import Batch, CommandsAsked, CommandStored, Store
from .store.opening import open_database
from .viewer import LiveEvent

log = logging.getLogger("penstock")

SLOW_ACKS = 5
"""Acknowledgements to loaders at a slow pace are so many times rarer: they would cost as much as the messages."""


class Counters(msgspec.Struct):
    """What came in since the start."""

    messages: int = 0
    bytes: int = 0
    events: int = 0
    bad_messages: int = 0
    repeated: int = 0
    """Messages that had come before, after a lost connection."""
    refused_connections: int = 0


class LoopLoad:
    """How busy the thread of the event loop is."""

    def __init__(self) -> None:
        self._used, self._at = time.thread_time(), time.monotonic()

    def share(self) -> float:
        """Share of the time since the last call, 0 to 1, in which the calling thread was on a processor."""
        used, at = time.thread_time(), time.monotonic()
        share = (used - self._used) / max(at - self._at, 1e-6)
        self._used, self._at = used, at
        return min(1.0, max(0.0, share))


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

    def __init__(self, settings: Settings, bus: Bus | None = None) -> None:
        self.settings = settings
        self.instance = secrets.token_hex(6)
        """New for every start."""
        self.started = time.time()
        self.counters = Counters()
        self.refusals = Refusals()
        self.seats_of_publishers = Present()
        self.seats_of_viewers = Present()
        self.store = Store(open_database(settings), settings.timing.commit, settings.limits)
        self.registry = Registry(settings.limits, settings.timing)
        self.registry.most_per_token = min(self.registry.most_per_token, self.store.most_loaders)
        self.hub = Hub(self.registry, settings.limits)
        self.publishers = Publishers(settings.limits)
        self.pacing = Pacing()
        self.load = LoopLoad()
        self.commands = CommandBook(settings.limits, settings.timing, self.store.command, self._show_command)
        self.replicas = Replicas(self, bus or InProcess())
        self.runs = Runs(self.registry, self.store, self.commands, self.replicas.place)
        self.hub.elsewhere = self.replicas
        self.store.share_upkeep(lambda: self.replicas.share)
        self.lookout = Lookout(settings, self.registry, self._tell_alerts, self.replicas, int(self.instance, 16))
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
        self.registry.on_dropped = self._dropped
        self.registry.restore(await self.store.start())
        since = time.time() - KEYS_KEPT
        stored = await self.store.commands(CommandsAsked(since=since, limit=20_000))
        self.commands.restore(stored[::-1])
        await self.replicas.start()
        self._clockwork = [
            asyncio.create_task(self._every(lambda: 1.0, self.replicas.beat)),
            asyncio.create_task(self._every(lambda: 0.5, self._sweep)),
            asyncio.create_task(self._every(lambda: self.settings.timing.acknowledge, self._acknowledge)),
            asyncio.create_task(self._every(lambda: 1.0, self._set_pace)),
            asyncio.create_task(self._every(self._overview_interval, self.hub.tick)),
            asyncio.create_task(self._every(lambda: 0.5, self.lookout.look)),
        ]

    async def stop(self) -> None:
        for task in self._clockwork:
            task.cancel()
        await asyncio.to_thread(self.lookout.stop)
        for entry in self.registry:
            if entry.here:
                self.store.loader(entry.record())
        await self.replicas.stop()
        await self.store.stop()

    # ------------------------------------------------------------------------------------- loaders and
    # viewers

    def connected(self, entry: Entry) -> None:
        entry.presence, entry.home = "connected", self.instance
        entry.hear(self.settings.timing.stale_intervals)
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

    async def backfill(self, connection: Connection, entry: Entry, after: int) -> None:
        """Read a loader's events after one, for a viewer that waits for them."""
        viewer, limits = connection.viewer, self.settings.limits
        asked = viewer.subscriptions
        most, most_bytes = limits.viewer_events, limits.viewer_bytes
        records, complete = await self.store.past(entry.key, entry.id, after, most, most_bytes)
        if viewer.subscriptions == asked:
            viewer.past(entry.id, [LiveEvent(record) for record in records], complete)
            connection.bell.set()

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
        return self.store.warning or self.replicas.bus.warning or self.settings.notice or self.refusals.told

    def refuse(self, what: Refused) -> None:
        """Something was refused because a limit was reached: it is said for a while."""
        self.refusals.note(what)
        self._tell_refusals()

    def _tell_refusals(self) -> None:
        if self.refusals.tell():
            self._warn()

    # ------------------------------------------------------------------------------------------------- pace

    def pace_of(self, entry: Entry) -> float:
        """Seconds between two snapshots that are wanted of a loader now."""
        now = time.monotonic()
        if self.hub.is_watched(entry.id):
            entry.watched = now
        since = now - entry.watched
        entry.judge.watched = since < LINGER
        return self.pacing.interval(since)

    def set_paces(self, loaders: Iterable[str]) -> None:
        """Somebody looks at these loaders now."""
        for identifier in loaders:
            entry = self.registry.get(identifier)
            if entry is not None and isinstance(entry.speaker, Publisher):
                entry.speaker.pace(self.pace_of(entry))

    def _set_pace(self) -> None:
        self.pacing.note(self.load.share())
        for publisher in self.publishers:
            if publisher.entry is not None:
                publisher.pace(self.pace_of(publisher.entry))

    # -----------------------------------------------------------------------------------------------
    # clockwork

    def _acknowledge(self) -> None:
        self.publishers.acknowledge(SLOW_ACKS * self.settings.timing.acknowledge)

    async def _every(self, interval: Callable[[], float], work: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            await asyncio.sleep(interval())
            try:
                takes_long = work()
                if takes_long is not None:
                    await takes_long
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
        self.replicas.events(batch.events)
        if durable:  # what is not, the loader keeps, and sends again to a dashboard that has been mended
            self.publishers.committed(batch.marks)
        self.publishers.void(batch.void)

    def _forgotten(self, entry: Entry) -> None:
        self.store.forget(entry.key)
        self.replicas.forgotten(entry)
        self._dropped(entry)

    def _dropped(self, entry: Entry) -> None:
        self.hub.removed(entry)
        self.lookout.forget(entry)

    def _show_command(self, stored: CommandStored, record: CommandRecord) -> None:
        self.hub.command(record)
        self.replicas.moved(stored)

    def _tell_alerts(self, alerts: Alerts) -> None:
        for connection in self.viewers:
            connection.tell(alerts)

    def _warn(self) -> None:
        for connection, token in self.viewers.items():
            connection.tell(self.session(token))
