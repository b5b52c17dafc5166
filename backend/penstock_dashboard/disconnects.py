"""Telling "the peer has gone" from a fault of our own."""

from __future__ import annotations

from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected


def is_disconnect(error: BaseException) -> bool:
    if isinstance(error, WebSocketDisconnect | ClientDisconnected | OSError):
        return True
    # Starlette's words for sending on, or closing, a websocket that is closed already.
    return isinstance(error, RuntimeError) and ("websocket" in str(error).lower())
