"""One loader's connection: hello, welcome, then messages until it goes.

A message counts only once: whatever has a sequence number at or below the last one is a repetition after a
lost connection. It is acknowledged only when it is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from penstock.protocol import (
    PROTOCOL,
    Ack,
    Command,
    Event,
    Events,
    Goodbye,
    Hello,
    Load,
    Outcome,
    Pace,
    Refused,
    Snapshot,
    ToBackend,
    ToLoader,
    Welcome,
    loader_id,
)
from starlette.websockets import WebSocket, WebSocketDisconnect

from .decoding import BadMessage, decode
from .disconnects import is_disconnect
from .pacing import UNWATCHED
from .registry import Entry, Full, Refusal
from .seats import CLOSING, seat_of
from .security.buckets import Buckets, TokenBucket
from .security.tokens import Token
from .settings import Limits
from .store import Mark, Sample, Unavailable
from .store.samples import pack

if TYPE_CHECKING:
    from .core import Backend

log = logging.getLogger("penstock.ingest")

TOKEN_GONE = "the token was taken away"
REPLACED_BY_ANOTHER = "another connection took this loader's place"
POLICY, REPLACED, TRY_LATER, INTERNAL = 1008, 4409, 1013, 1011
"""Close codes."""
PACED = 3
"""Minor version of the protocol from which on loaders can be told how often to publish."""


class Publisher:
    """A loader's connection, seen from the rest of the backend."""

    def __init__(self, backend: Backend, socket: WebSocket, token: Token) -> None:
        self.token = token
        self.entry: Entry | None = None
        self.stored = -1
        """Last message that is stored."""
        self._backend = backend
        self._socket = socket
        self._acked = -1
        self._acked_at = 0.0
        self._said_goodbye = False
        self._bad = 0
        self._minor = PROTOCOL[1]
        self._outbox: deque[bytes] = deque()
        self._bell = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        limits = backend.settings.limits
        self._messages = TokenBucket(limits.message_burst, limits.message_rate)
        self._bytes = TokenBucket(limits.byte_burst, limits.byte_rate)
        self._token_bytes = backend.publishers.bytes_of(token.name)
        self._seat = seat_of(socket.scope)
        self._owner = 0
        self._moved = False
        """Whether the loader may have been connected at another replica before."""
        self._waiting = False
        """Whether the next message is waited for, and may be delivered at once."""
        self._delay = 0.0
        """Seconds that the message which comes next must wait; it was counted already."""

    async def serve(self) -> None:
        sender = asyncio.create_task(self._send())
        receiver = asyncio.create_task(self._receive())
        try:
            await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sender, receiver):
                task.cancel()
            results = await asyncio.gather(sender, receiver, return_exceptions=True)
            self._leave()
        for result in results:
            if isinstance(result, Exception) and not is_disconnect(result):
                log.error("a loader's connection failed", exc_info=result)

    def send(self, message: ToLoader | Command) -> None:
        self._outbox.append(msgspec.msgpack.encode(message.flat() if isinstance(message, Command) else message))
        self._bell.set()

    def pace(self, interval: float) -> None:
        """Tell the loader how often to publish, if it understands that and does not know it."""
        entry = self.entry
        if entry is not None and self._minor >= PACED and entry.pace != interval:
            entry.pace = interval
            self.send(Pace(round(interval * 1e6)))

    def acknowledge(self, least: float = 0.0) -> None:
        """Tell the loader what is stored; one that publishes at a slow pace, so many seconds after the last time."""
        if self.stored > self._acked:
            now = time.monotonic()
            if self.entry is not None and self.entry.pace >= UNWATCHED and now < self._acked_at + least:
                return
            self._acked_at = now
            self._acked = self.stored
            self.send(Ack(self.stored))

    def committed(self, mark: Mark) -> None:
        entry = self.entry
        if entry is not None and entry.hello.identity.incarnation == mark.incarnation:
            self.stored = max(self.stored, mark.seq)
            if self._said_goodbye:
                self.acknowledge()

    def close(self, code: int, reason: str) -> None:
        """It is told why, if it reads; else it is hung up on."""
        self._closing = (code, reason)
        self._bell.set()
        if self._seat is not None:
            self._seat.close_within(CLOSING)

    # ------------------------------------------------------------------------------------------- connection

    async def _send(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._outbox:
                await self._socket.send_bytes(self._outbox.popleft())
            if self._closing is not None:
                await self._socket.close(*self._closing)
                return

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(self._backend.settings.limits.handshake):
                first = await self._next()
        except TimeoutError:
            self.close(POLICY, "no hello came in time")
            await asyncio.sleep(1.0)
            return
        if not await self._greet(first):
            await asyncio.sleep(1.0)  # until the sender has closed the connection
            return
        if self._seat is not None:
            self._seat.deliver = self._deliver
        while True:
            self._waiting = True
            data = await self._next()
            counted, self._waiting = not self._waiting, False
            if not counted:
                self._delay = self._count(len(data))
            if not await self._may_take():
                return
            self._take(data)

    def _deliver(self, data: bytes) -> bool:
        """Take a message while it is being read, without a task in between. False: it must wait."""
        if not self._waiting or self._closing is not None:
            return False
        self._delay = self._count(len(data))
        if self._delay or not self._backend.store.has_room(self._owner):
            self._waiting = False
            return False
        try:
            self._take(data)
        except Exception:
            log.exception("a loader's message could not be dealt with")
            self.close(INTERNAL, "an error in the dashboard; its log says more")
        return True

    def _count(self, size: int) -> float:
        """Seconds for which a message of so many bytes must wait to be within the limits."""
        return max(self._messages.owe(), self._bytes.owe(size), self._token_bytes.owe(size))

    async def _may_take(self) -> bool:
        """Wait until the message that came is within the limits and there is room for it. Meanwhile nothing is read:
        the loader feels it, and nothing is acknowledged. False: that took too long, and it is told to go.
        """
        if self._delay:
            await asyncio.sleep(self._delay)
        store = self._backend.store
        if store.has_room(self._owner):
            return True
        try:
            async with asyncio.timeout(self._backend.settings.limits.patience):
                await store.room(self._owner)
        except TimeoutError:
            self._backend.refuse("messages")
            self.close(TRY_LATER, "the store cannot keep up; come back later")
            await asyncio.sleep(CLOSING)  # until the sender has closed the connection
            return False
        return True

    async def _next(self) -> bytes | str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data: bytes | str | None = message.get("bytes")
        return data if data is not None else message.get("text") or ""

    # --------------------------------------------------------------------------------------------- messages

    async def _greet(self, data: bytes | str) -> bool:
        try:
            if len(data) > self._backend.settings.limits.hello:
                raise BadMessage(f"hello may have at most {self._backend.settings.limits.hello} bytes")
            hello = _decode(data, PROTOCOL[1])
            if not isinstance(hello, Hello):
                raise BadMessage("the first message must be hello")
            async with asyncio.timeout(self._backend.settings.limits.patience):
                entry = await self._claim(self._checked(hello))
        except (BadMessage, Refusal, Unavailable, TimeoutError) as refusal:
            self._refuse(refusal)
            return False
        self._minor = hello.protocol[1]
        self.entry = entry
        self.stored = entry.last_seq
        self._backend.publishers.arrived(self, entry)
        entry.pace = self._backend.pace_of(entry) if self._minor >= PACED else 0.0
        self.send(Welcome(PROTOCOL, entry.id, entry.last_seq, time.time(), round(entry.pace * 1e6)))
        self._backend.connected(entry)
        if self._moved:
            self._backend.replicas.inherited.arrived(entry)
        return True

    async def _claim(self, hello: Hello) -> Entry:
        """Its entry, whose messages come from this connection and from no other from now on."""
        store, registry, publishers = self._backend.store, self._backend.registry, self._backend.publishers
        who = hello.identity
        loader = loader_id(who.run, who.rank, who.name)
        self._owner = await store.owner(self.token.name)
        registry.admit(hello, self._owner)
        with publishers.greeting(self, loader, registry.get(loader)):
            claim = await store.claim(loader, who.incarnation, self._owner, msgspec.msgpack.encode(hello))
            if not publishers.is_greeting(self, loader):
                raise Replaced(REPLACED_BY_ANOTHER)
            try:
                entry = registry.welcome(hello, claim)
            except Full:
                store.forget(claim.key)
                raise
        if claim.place is not None:
            for other in registry.put(claim.place):
                self._backend.hub.changed(other)
        self._moved = claim.moved
        return entry

    def _refuse(self, refusal: Exception) -> None:
        code, reason = TRY_LATER, str(refusal)
        if isinstance(refusal, BadMessage):
            code = POLICY
        elif isinstance(refusal, Replaced):
            code = REPLACED
        elif isinstance(refusal, Unavailable | TimeoutError):
            reason = "the store cannot be reached; come back later"
            self._backend.refuse("messages")
        if isinstance(refusal, Full):
            self._backend.refuse("loaders")
        self._backend.counters.bad_messages += isinstance(refusal, BadMessage | Refusal)
        self.send(Refused(reason[:256]))
        self.close(code, reason[:120])

    def _checked(self, hello: Hello) -> Hello:
        """Two processes may call themselves the same; the one that started later is it."""
        known = self._backend.registry.find(hello.identity)
        if (
            known is not None
            and known.connected
            and known.hello.identity.incarnation != hello.identity.incarnation
            and known.hello.started > hello.started
        ):
            raise Refusal(f"a later process publishes as {known.id}; give this loader another name=")
        return hello

    def _take(self, data: bytes | str) -> None:
        self._backend.counters.messages += 1
        self._backend.counters.bytes += len(data)
        try:
            message = _decode(data, self._minor)
            if isinstance(message, Hello):
                raise BadMessage("hello came a second time")
            written = [written_out(event) for event in message.events] if isinstance(message, Events) else []
            most = self._backend.store.most_written
            if sum(len(body) for _, body in written) > most:
                raise BadMessage(f"events: as JSON they take more than {most} bytes")
        except BadMessage as bad:
            self._bad += 1
            self._backend.counters.bad_messages += 1
            self.send(Refused(str(bad)[:256]))
            if self._bad >= self._backend.settings.limits.bad_messages:
                self.close(POLICY, f"{self._bad} messages were not understood")
            return
        entry = self.entry
        if message is None or entry is None or entry.speaker is not self:
            return
        entry.hear(self._backend.settings.timing.stale_intervals)
        if isinstance(message, Outcome):
            self._backend.commands.outcome(entry, message)
        elif isinstance(message, Load):
            entry.load = message
        elif not self._is_new(entry, message.seq):
            self._backend.counters.repeated += 1
        elif isinstance(message, Snapshot):
            self._snapshot(entry, message, data)
        elif isinstance(message, Events):
            self._events(entry, message, written)
        else:
            self._goodbye(entry, message)

    def _is_new(self, entry: Entry, seq: int) -> bool:
        if seq <= entry.last_seq:
            return False
        if entry.last_seq >= 0:
            entry.missed += seq - entry.last_seq - 1
        entry.last_seq = seq
        return True

    def _snapshot(self, entry: Entry, snapshot: Snapshot, data: bytes | str) -> None:
        assert isinstance(data, bytes), "text is not decoded"
        before = entry.state
        entry.take(snapshot, data)
        if entry.state != before:
            self._backend.replicas.tell(entry)
        mark = Mark(entry.hello.identity.incarnation, snapshot.seq, entry.claim)
        packed = pack(entry.rates, None if snapshot.between is UNSET else snapshot.between)
        self._backend.store.sample(entry.key, entry.owner, Sample(snapshot.at, packed), mark)
        if entry.presence != "connected":
            entry.presence = "connected"
            self._backend.hub.changed(entry)
        self._backend.hub.snapshot(entry, snapshot)

    def _events(self, entry: Entry, message: Events, written: list[tuple[str, bytes]]) -> None:
        for event in message.events:
            entry.judge.note(event)
        mark = Mark(entry.hello.identity.incarnation, message.seq, entry.claim)
        self._backend.store.events(entry.key, entry.owner, entry.id, time.time(), written, mark)
        self._backend.counters.events += len(written)

    def _goodbye(self, entry: Entry, goodbye: Goodbye) -> None:
        self._said_goodbye = True
        entry.presence = "finished"
        mark = Mark(entry.hello.identity.incarnation, goodbye.seq, entry.claim)
        self._backend.store.mark(entry.key, mark, 0.0)
        self._backend.store.loader(entry.record())
        self._backend.commands.ended(entry, "the loader ended")
        self._backend.hub.changed(entry)

    def _leave(self) -> None:
        if self.entry is not None and self.entry.speaker is self:
            self._backend.publishers.left(self, self.entry)
            self._backend.disconnected(self.entry)


class Replaced(Refusal):
    """Another connection speaks for this loader now."""


class Publishers:
    """The connections of loaders that are up."""

    def __init__(self, limits: Limits) -> None:
        self._by_key: dict[int, Publisher] = {}
        self._greeting: dict[str, Publisher] = {}
        """Loader → the connection that has said hello for it last, until it is welcome."""
        self._bytes = Buckets(limits.token_byte_burst, limits.token_byte_rate)

    def bytes_of(self, token: str) -> TokenBucket:
        """What all connections of a token may send together: it outlives each of them."""
        return self._bytes.of(token)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Publisher]:
        return iter(list(self._by_key.values()))

    @contextlib.contextmanager
    def greeting(self, publisher: Publisher, loader: str, entry: Entry | None) -> Iterator[None]:
        """While a connection claims a loader, nobody else speaks for it: so what is stored before the claim is all."""
        self._greeting[loader] = publisher
        if entry is not None:
            self.replace(entry)
        try:
            yield
        finally:
            if self.is_greeting(publisher, loader):
                del self._greeting[loader]

    def is_greeting(self, publisher: Publisher, loader: str) -> bool:
        return self._greeting.get(loader) is publisher

    def arrived(self, publisher: Publisher, entry: Entry) -> None:
        self._by_key[entry.key] = publisher
        entry.speaker = publisher
        entry.send = publisher.send

    def replace(self, entry: Entry) -> None:
        """Nothing more is taken from the connection that speaks for a loader."""
        before = self._by_key.get(entry.key)
        if before is not None:
            self.left(before, entry)
            before.send(Refused(REPLACED_BY_ANOTHER))
            before.close(REPLACED, REPLACED_BY_ANOTHER)

    def left(self, publisher: Publisher, entry: Entry) -> None:
        if self._by_key.get(entry.key) is publisher:
            del self._by_key[entry.key]
            entry.speaker = None
            entry.send = None

    def committed(self, marks: dict[int, Mark]) -> None:
        for key, mark in marks.items():
            if (publisher := self._by_key.get(key)) is not None:
                publisher.committed(mark)

    def void(self, keys: Iterable[int]) -> None:
        """Somebody else has claimed these loaders: what came here of them was not stored, and will be sent there."""
        for key in keys:
            publisher = self._by_key.get(key)
            if publisher is not None and publisher.entry is not None:
                self.replace(publisher.entry)

    def acknowledge(self, least: float) -> None:
        for publisher in self._by_key.values():
            publisher.acknowledge(least)


def written_out(event: Event) -> tuple[str, bytes]:
    """An event's kind, and what is stored and shown of it."""
    return str(event.__struct_config__.tag), msgspec.json.encode(event)


def _decode(data: bytes | str, minor: int) -> ToBackend | None:
    if isinstance(data, str):
        raise BadMessage("messages are MessagePack in binary frames, not text")
    return decode(data, minor)
