"""The two websockets: loaders publish on one, viewers listen on the other."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from ..core import Backend
from ..ingest import Publisher
from ..live import Live
from ..problems import Problem
from ..security.access import Access, access_of
from ..security.tokens import Scope, Token

router = APIRouter()


@router.websocket("/ws/publish")
async def publish(socket: WebSocket) -> None:
    backend = _backend(socket)
    token = await _admit(socket, "publish", backend.connections.publishers, backend.settings.limits.publishers)
    if token is None:
        return
    backend.connections.publishers += 1
    try:
        await socket.accept()
        await Publisher(backend, socket, token).serve()
    finally:
        backend.connections.publishers -= 1


@router.websocket("/ws/live")
async def live(socket: WebSocket) -> None:
    backend = _backend(socket)
    token = await _admit(socket, "view", backend.connections.viewers, backend.settings.limits.viewers)
    if token is None:
        return
    backend.connections.viewers += 1
    try:
        await socket.accept()
        await Live(backend, socket, token).serve()
    finally:
        backend.connections.viewers -= 1


async def _admit(socket: WebSocket, scope: Scope, present: int, most: int) -> Token | None:
    """The caller's token, or None after the handshake was refused with a problem."""
    access: Access = access_of(socket)
    try:
        token = access.require(socket, scope)
        if present >= most:
            raise Problem(503, "too-many-connections", f"{most} such connections are open, which is the limit.")
    except Problem as problem:
        _backend(socket).counters.refused_connections += 1
        await socket.send_denial_response(problem.response())
        return None
    return token


def _backend(socket: WebSocket) -> Backend:
    backend = socket.app.state.backend
    assert isinstance(backend, Backend)
    return backend
