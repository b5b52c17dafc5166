"""The first thing every request meets, HTTP and websocket alike: Host, Origin, Sec-Fetch-Site, sizes,
headers.

It is plain ASGI around the whole app, so that no route can forget it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..problems import MEDIA_TYPE, Problem
from ..seats import seat_of
from ..security.access import Access
from ..security.forwarded import forwarded
from ..security.hosts import Hosts
from ..settings import Settings
from ..turnstile import Turnstile

log = logging.getLogger("penstock.security")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def content_security_policy(frame_ancestors: Iterable[str] = ()) -> str:
    """Scripts, styles and connections of our own only. Style attributes are allowed: charts set them."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "style-src-attr 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            f"frame-ancestors {' '.join(frame_ancestors) or chr(39) + 'none' + chr(39)}",
        )
    )


class Gate:
    """Checks every request before anything else sees it."""

    def __init__(self, app: ASGIApp, settings: Settings, access: Access) -> None:
        self._app = app
        self._access = access
        self._turnstile = Turnstile(settings.limits.stranger_burst, settings.limits.stranger_rate)
        self._hosts = Hosts(settings.host, settings.public_url, settings.allow_hosts)
        self._root_path = settings.root_path
        self._behind_proxy = bool(settings.public_url)
        self._limits = settings.limits
        self._headers = {
            "content-security-policy": content_security_policy(settings.frame_ancestors),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        }
        if not settings.frame_ancestors:
            self._headers["x-frame-options"] = "DENY"
        if settings.public_url.startswith("https:"):
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        websocket = scope["type"] == "websocket"
        if self._behind_proxy:
            scope = forwarded(scope)
        refusal = self._refusal(scope)
        if refusal is not None:
            if websocket:
                log.info("refused a websocket: %d %s", refusal.status, refusal.kind)
            await self._refuse(refusal, websocket, self._with_headers(send))
            return
        if not await self._is_its_turn(scope):
            while not (await receive())["type"].endswith(".disconnect"):
                pass  # nobody is there to be answered; the server wants to have heard so
            return
        scope = self._under_prefix(scope)
        if websocket:
            await self._app(scope, receive, send)
        else:
            await self._app(scope, self._bounded(receive), self._with_headers(send))

    async def _is_its_turn(self, scope: Scope) -> bool:
        """At once for those who show a token. False: it has gone while it waited."""
        seat = seat_of(scope)
        if seat is None or self._access.identify(HTTPConnection(scope)) is not None:
            return True
        await self._turnstile.passed(seat.transport.is_closing)
        return not seat.transport.is_closing()

    def _refusal(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        host = headers.get("host")
        if len(headers.getlist("host")) != 1 or not self._hosts.allows(host):
            return Problem(
                421,
                "unknown-host",
                "This server does not answer to that Host name. "
                "If it should, start it with --allow-host NAME or --public-url URL.",
            )
        origins = headers.getlist("origin")
        for origin in origins:
            if not self._hosts.allows_origin(origin, host or "", scope["scheme"]):
                return Problem(403, "foreign-origin", "Requests from pages of another origin are refused.")
        unsafe = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if unsafe and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return Problem(403, "cross-site", "Requests from pages of another site are refused.")
        if "content-length" in headers and "transfer-encoding" in headers:
            # Two readers may disagree about where such a request ends, so nothing that follows it is believed.
            return _hanging_up(400, "two-lengths", "A request has Content-Length or Transfer-Encoding, not both.")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limits.body:
            return _too_large(self._limits.body)
        return None

    def _under_prefix(self, scope: Scope) -> Scope:
        """Proxies may pass our prefix on or strip it: both work."""
        prefix = self._root_path
        path: str = scope["path"]
        scope = {**scope, "penstock.prefix": prefix, "penstock.bare_prefix": bool(prefix) and path == prefix}
        if prefix and (path == prefix or path.startswith(prefix + "/")):
            scope["path"] = path[len(prefix) :] or "/"
        return scope

    def _bounded(self, receive: Receive) -> Receive:
        """A body that is too large, or comes too slowly, is not read to its end."""
        taken = 0
        complete = False
        deadline = asyncio.get_running_loop().time() + self._limits.handshake

        async def bounded() -> Message:
            nonlocal taken, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise _hanging_up(408, "slow-body", "The body of the request did not come in time.") from None
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if taken > self._limits.body:
                    raise _too_large(self._limits.body)
            return message

        return bounded

    def _with_headers(self, send: Send) -> Send:
        async def sender(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        return sender

    async def _refuse(self, problem: Problem, websocket: bool, send: Send) -> None:
        kind = "websocket.http.response" if websocket else "http.response"
        body = problem.body()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            *([] if websocket else [(b"connection", b"close")]),
        ]
        await send({"type": f"{kind}.start", "status": problem.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


def _too_large(limit: int) -> Problem:
    return _hanging_up(413, "too-large", f"The body of a request may have at most {limit} bytes.")


def _hanging_up(status: int, kind: str, detail: str) -> Problem:
    """What is left of the body is not waited for."""
    return Problem(status, kind, detail, headers={"Connection": "close"})
