"""Who is asking, and may they: for HTTP routes as dependencies, for websockets as a function."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request
from starlette.requests import HTTPConnection

from ..problems import Problem
from ..seats import seat_of
from ..security.buckets import Buckets
from ..security.links import Links
from ..security.sessions import PAGE_HEADER, PAGE_SUBPROTOCOL, Sessions
from ..security.tokens import Keyring, Scope, Token
from ..settings import Settings


class Access:
    """Who may do what, by token or by session."""

    def __init__(self, settings: Settings, keyring: Keyring, links: Links) -> None:
        self.keyring = keyring
        self.sessions = Sessions(keyring)
        self.read_only = settings.read_only
        self.links = links
        self.public_url = settings.public_url
        # Browsers share cookies between the ports of one host, so the name carries the port. Under TLS, the prefix
        # keeps others from setting it: browsers take it from this very host, over TLS and for all paths only.
        self.cookie_secure = settings.public_url.startswith("https:")
        # Replicas behind one public address share it.
        port = urlsplit(settings.public_url).port or settings.port if settings.public_url else settings.port
        self.cookie = f"{'__Host-' if self.cookie_secure else ''}penstock-{port}"
        self.cookie_path = "/" if self.cookie_secure else settings.root_path or "/"
        self.login_failures = Buckets(settings.limits.login_failures, settings.limits.login_rate)
        self.commands = Buckets(settings.limits.commands, settings.limits.command_rate)

    def identify(self, connection: HTTPConnection) -> Token | None:
        """The token behind a request: by header, else by cookie. A cookie does not make a wrong header
        good.
        """
        token = self._token_of(connection)
        seat = seat_of(connection.scope)
        if token is not None and seat is not None:
            seat.known()
        return token

    def _token_of(self, connection: HTTPConnection) -> Token | None:
        header = connection.headers.get("authorization")
        if header is not None:
            kind, _, secret = header.partition(" ")
            return self.keyring.find(secret.strip()) if kind.lower() == "bearer" else None
        cookie = connection.cookies.get(self.cookie)
        return self.sessions.find(cookie, page_of(connection)) if cookie else None

    def require(self, connection: HTTPConnection, scope: Scope) -> Token:
        """The token, if it has the scope; a problem says what is missing otherwise."""
        token = self.identify(connection)
        if token is None:
            raise not_signed_in()
        if scope not in token.scopes:
            raise Problem(403, "missing-scope", f"The token “{token.name}” does not have the scope “{scope}”.")
        if scope == "control" and self.read_only:
            raise Problem(403, "read-only", "This dashboard was started with --read-only and takes no commands.")
        return token


def not_signed_in() -> Problem:
    return Problem(
        401,
        "not-signed-in",
        "A valid token is needed: as `Authorization: Bearer …`, or sign in with POST /api/session.",
        headers={"WWW-Authenticate": 'Bearer realm="penstock"'},
    )


def access_of(connection: HTTPConnection) -> Access:
    access = connection.app.state.access
    assert isinstance(access, Access)
    return access


class Requires:
    """A dependency: the caller's token, which has this scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __call__(self, request: Request) -> Token:
        return access_of(request).require(request, self.scope)


def page_of(connection: HTTPConnection) -> str:
    """The page's half of a session; empty if there is none."""
    offered: list[str] = connection.scope.get("subprotocols", [])
    halves = [offer.removeprefix(PAGE_SUBPROTOCOL) for offer in offered if offer.startswith(PAGE_SUBPROTOCOL)]
    return connection.headers.get(PAGE_HEADER, "") or (halves[0] if halves else "")


def client_address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""
