"""uvicorn, with the limits it does not have by itself.

Every connection has a seat (`seats.py`), and the seat's deadline is set here, where requests begin and answers end:
below HTTP, so that limits cost an attacker more than us.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from asyncio.transports import BaseTransport
from typing import Any

import uvicorn
from penstock.protocol import MAX_MESSAGE
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from .seats import SEAT, Seat, Seats
from .settings import Settings

log = logging.getLogger("penstock.server")

GRACE = 1
"""Seconds that connections have to end when the server does."""
SWEEP = 0.25
"""Seconds between two looks at who is too late."""
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before any of them is looked at; asyncio takes the listening backlog for it."""
BACKLOG = 2048
READ_AT_ONCE = 32 << 10
"""Bytes that are read from a connection before what they say is dealt with: thousands of tiny messages at most."""


def guarded_http(seats: Seats) -> type[H11Protocol]:
    """uvicorn's HTTP protocol, seated."""

    class Guarded(H11Protocol):
        """An HTTP connection that has a seat, and so a deadline for everything it does."""

        _seat: Seat

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            setattr(transport, "max_size", READ_AT_ONCE)  # noqa: B010  asyncio's own; it has no public name
            self._seat = seats.take(transport)
            self.app_state = {**self.app_state, SEAT: self._seat}

        def data_received(self, data: bytes) -> None:
            before = self.scope
            super().data_received(data)
            if self.scope is not before:
                self._begun()

        def on_response_complete(self) -> None:
            self._seat.answered = True
            before = self.scope
            super().on_response_complete()
            if self.scope is not before:  # the next request had come already
                self._begun()

        def connection_lost(self, exc: Exception | None) -> None:
            seats.leave(self._seat)
            super().connection_lost(exc)

        def _begun(self) -> None:
            """A request's head is complete. A websocket's has been handed on."""
            seat = self._seat
            if self.transport.get_protocol() is self:
                seat.answered = self.cycle.response_complete
                seat.due = seats.clock() + seats.limits.answer

    return Guarded


def guarded_websocket(seats: Seats) -> type[WebSocketsSansIOProtocol]:
    """uvicorn's websocket protocol, which keeps the seat of the request that it began as."""

    class GuardedWebSocket(WebSocketsSansIOProtocol):
        """A websocket that keeps the seat of the connection it began as."""

        _seat: Seat

        def connection_made(self, transport: BaseTransport) -> None:
            super().connection_made(transport)
            self._seat = self.app_state[SEAT]
            self._seat.due = seats.clock() + seats.limits.handshake

        def connection_lost(self, exc: Exception | None) -> None:
            seats.leave(self._seat)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._seat.unread = seats.clock()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._seat.unread = None

        def handle_ping(self) -> None:
            """Somebody who does not read gets no pongs: they would wait for ever, and there is no end to pings."""
            pong = b"".join(self.conn.data_to_send())
            if self.writable.is_set():
                self.transport.write(pong)

        def handle_cont(self, event: Frame) -> None:
            if len(self.frames) >= seats.limits.fragments:
                self.conn.fail(1009, "too many fragments")
                self.handle_parser_exception()
            elif not self.close_sent:
                super().handle_cont(event)

        def handle_bytes(self, event: Frame) -> None:
            """Whoever waits for the next message may take it here and now: a queue and a task that wakes for it cost
            as much as everything else that is done with a loader's message.
            """
            deliver = self._seat.deliver
            at_once = event.fin and deliver is not None and self.queue.empty() and not self.close_sent
            if not (at_once and deliver is not None and deliver(bytes(event.data))):
                super().handle_bytes(event)

        def send_receive_event_to_app(self) -> None:
            """uvicorn stops reading with each message until it is taken, at two system calls a message: that need not
            be for a small one that nobody waits behind.
            """
            few = not self.read_paused and self.queue.empty() and sum(map(len, self.frames)) <= READ_AT_ONCE
            self.read_paused = self.read_paused or few
            super().send_receive_event_to_app()
            self.read_paused = self.read_paused and not few

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.accept":
                self._seat.upgraded()
            elif message["type"] == "websocket.http.response.body":
                self.handshake_complete = True  # it is refused, and that is an answer

    return GuardedWebSocket


class Server(uvicorn.Server):
    """A server that can be asked to end, and that ends quietly on signals."""

    def __init__(self, config: uvicorn.Config, seats: Seats) -> None:
        super().__init__(config)
        self.seats = seats
        self._sweeper: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_Handler())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # who is not accepted at once may wait
        self._sweeper = asyncio.create_task(self._sweep())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A peer that does not read never lets its connection end by itself.
        asyncio.get_running_loop().call_later(GRACE / 2, self._abort_all)
        await super().shutdown(sockets)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._captured_signals.clear()  # they did what they were for; do not raise them again

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            try:
                self.seats.sweep()
            except Exception:
                log.exception("looking after the connections failed; it goes on")

    def _abort_all(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Handler:
    """What asyncio has no other place for. Running out of descriptors is said once a minute, not at every attempt."""

    def __init__(self) -> None:
        self._said = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._said > 60.0:
            self._said = time.monotonic()
            log.warning("no more connections can be accepted: %s. Allow more open files (ulimit -n).", error.strerror)


def make_server(app: ASGIApp, settings: Settings) -> Server:
    seats = Seats(settings.limits)
    options: dict[str, Any] = {
        "http": guarded_http(seats),
        "ws": guarded_websocket(seats),
        "loop": "asyncio",  # the limits above are made for its transports
        "backlog": ACCEPTED_AT_ONCE,
        "ws_max_size": MAX_MESSAGE,
        "ws_per_message_deflate": False,  # costs memory per connection, and the messages are compact
        "ws_ping_interval": 20.0,
        "ws_ping_timeout": 20.0,
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # `security/forwarded.py` believes less
        "timeout_keep_alive": settings.limits.idle,
        "timeout_graceful_shutdown": GRACE,
    }
    return Server(uvicorn.Config(app, **options), seats)
