"""uvicorn, with the limits it does not have by itself.

A connection must bring a whole request head within a few seconds (or be closed), and there may be only so
many connections. Both are done where connections are made, below HTTP, so they cost an attacker more than
us.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from penstock.protocol import MAX_MESSAGE
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .settings import Limits, Settings

GRACE = 1
"""Seconds that connections have to end when the server does."""


def guarded_protocol(limits: Limits) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with a deadline for the first request and a limit on connections."""

    class Guarded(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
                return
            self._deadline = self.loop.call_later(limits.handshake, self._too_slow)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # `scope` is set by the first complete request head, whether it becomes a websocket or not.
            if self._deadline is not None and self.scope is not None:
                self._deadline.cancel()
                self._deadline = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def _too_slow(self) -> None:
            self.transport.abort()

    return Guarded


class Server(uvicorn.Server):
    """A server that can be asked to end, and that ends quietly on signals."""

    def stop(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A peer that does not read never lets its connection end by itself.
        asyncio.get_running_loop().call_later(GRACE / 2, self._abort_all)
        await super().shutdown(sockets)
        self._captured_signals.clear()  # they did what they were for; do not raise them again

    def _abort_all(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_server(app: ASGIApp, settings: Settings) -> Server:
    options: dict[str, Any] = {
        "http": guarded_protocol(settings.limits),
        "ws": "websockets-sansio",
        "ws_max_size": MAX_MESSAGE,
        "ws_per_message_deflate": False,  # costs memory per connection, and the messages are compact
        "ws_ping_interval": 20.0,
        "ws_ping_timeout": 20.0,
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(settings.public_url),
        "timeout_keep_alive": 15,
        "timeout_graceful_shutdown": GRACE,
    }
    return Server(uvicorn.Config(app, **options))
