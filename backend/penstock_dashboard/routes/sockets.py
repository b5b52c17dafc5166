"""The two websockets: loaders publish on one, viewers listen on the other."""

from __future__ import annotations

import logging

from fastapi import APIRouter, WebSocket

from ..core import Backend, Present
from ..ingest import Publisher
from ..live import Live
from ..problems import Problem
from ..security.access import Access, access_of
from ..security.sessions import SUBPROTOCOL
from ..security.tokens import Scope, Token

log = logging.getLogger("penstock.security")
router = APIRouter()


@router.websocket("/ws/publish")
async def publish(socket: WebSocket) -> None:
    backend = _backend(socket)
    token = await _admit(socket, "publish", backend.seats_of_publishers, backend.settings.limits.publishers)
    if token is None:
        return
    with backend.seats_of_publishers.taken(token.name):
        await socket.accept()
        await Publisher(backend, socket, token).serve()


@router.websocket("/ws/live")
async def live(socket: WebSocket) -> None:
    backend = _backend(socket)
    token = await _admit(socket, "view", backend.seats_of_viewers, backend.settings.limits.viewers)
    if token is None:
        return
    with backend.seats_of_viewers.taken(token.name):
        # A page offers its half of the session beside this; a browser wants one of its offers to be taken.
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
        await Live(backend, socket, token).serve()


async def _admit(socket: WebSocket, scope: Scope, present: Present, most: int) -> Token | None:
    """The caller's token, or None after the handshake was refused with a problem."""
    access: Access = access_of(socket)
    backend = _backend(socket)
    try:
        token = access.require(socket, scope)
        share = backend.settings.limits.of_one_token(most)
        if present.all >= most:
            raise Problem(503, "too-many-connections", f"{most} such connections are open, which is the limit.")
        if present.of(token.name) >= share:
            reason = f"The token “{token.name}” has {share} such connections open, which is the limit."
            raise Problem(503, "too-many-connections", reason)
    except Problem as problem:
        if problem.status == 503:
            backend.refuse("connections")
        backend.counters.refused_connections += 1
        log.info("refused a websocket: %d %s", problem.status, problem.kind)
        await socket.send_denial_response(problem.response())
        return None
    return token


def _backend(socket: WebSocket) -> Backend:
    backend = socket.app.state.backend
    assert isinstance(backend, Backend)
    return backend
