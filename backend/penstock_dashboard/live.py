"""One viewer's connection: a session message, then whatever it subscribes to.

Subscribe first, then read the past, then drop what is in both: so nothing is missed and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec
from penstock.protocol import FromViewer, Gone, Ping, Pong, Subscribe
from starlette.websockets import WebSocket, WebSocketDisconnect

from .disconnects import is_disconnect
from .hub import Connection
from .seats import seat_of
from .security.buckets import TokenBucket
from .security.tokens import Token

if TYPE_CHECKING:
    from .core import Backend

log = logging.getLogger("penstock.live")

_from_viewer = msgspec.json.Decoder(FromViewer)

POLICY = 1008


class Live:
    """One viewer's connection."""

    def __init__(self, backend: Backend, socket: WebSocket, token: Token) -> None:
        self._backend = backend
        self._socket = socket
        self._token = token
        self._connection: Connection = backend.hub.join(seat_of(socket.scope))
        self._bucket = TokenBucket(100.0, backend.settings.limits.viewer_messages)

    async def serve(self) -> None:
        self._backend.viewers[self._connection] = self._token
        self._connection.tell(self._backend.session(self._token))
        self._connection.tell(self._backend.lookout.told)
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._backend.hub.leave(self._connection)
            self._backend.viewers.pop(self._connection, None)
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not is_disconnect(result):
                log.error("a viewer's connection failed", exc_info=result)

    async def _send(self) -> None:
        connection, hub = self._connection, self._backend.hub
        viewer, bell = connection.viewer, connection.bell
        while True:
            await bell.wait()
            bell.clear()
            if connection.closing:
                await self._socket.close(POLICY, connection.closing)
                return
            while not viewer.empty or viewer.overview_due:
                for message in viewer.messages(hub.frame, hub.detail):
                    await self._socket.send_text(message)
                overview = hub.overview(viewer)
                if overview is not None:
                    await self._socket.send_text(overview)

    async def _receive(self) -> None:
        bad = 0
        while True:
            received = await self._socket.receive()
            if received["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(received.get("code", 1005))
            delay = self._bucket.owe()
            if delay:
                await asyncio.sleep(delay)
            try:
                message = _from_viewer.decode(received.get("text") or "")
            except (msgspec.DecodeError, RecursionError, ValueError):
                bad += 1
                if bad >= self._backend.settings.limits.bad_messages:
                    await self._socket.close(POLICY, "messages were not understood")
                    return
                continue
            if isinstance(message, Ping):
                self._connection.tell(Pong(message.at))
            else:
                await self._subscribe(message)

    async def _subscribe(self, wanted: Subscribe) -> None:
        backend, connection = self._backend, self._connection
        viewer = connection.viewer
        loaders = list(dict.fromkeys(wanted.loaders))
        after = {loader: last for loader, last in wanted.after.items() if backend.registry.get(loader)}
        known = {loader: entry.newest_event for loader in loaders if (entry := backend.registry.get(loader))}
        past = viewer.subscribe(Subscribe(wanted.overview, loaders, after), known)
        # Also those that are not known: when such a loader comes, its viewers hear of it.
        backend.hub.follow(connection, loaders)
        backend.set_paces(loaders)
        for loader in loaders:
            entry = backend.registry.get(loader)
            if entry is None:
                connection.tell(Gone(loader))
            else:
                viewer.detail(loader)
                if entry.received:
                    viewer.frame(loader)
        connection.bell.set()
        for loader in past:
            entry = backend.registry.get(loader)
            if entry is not None:
                await backend.backfill(connection, entry, wanted.after[loader])
