"""Who is asking, and may they: for HTTP routes as dependencies, for websockets as a function."""

from __future__ import annotations

from fastapi import Request
from starlette.requests import HTTPConnection

from ..problems import Problem
from ..security.buckets import Buckets
from ..security.sessions import Sessions
from ..security.tokens import Keyring, Scope, Token
from ..settings import Settings


class Access:
    def __init__(self, settings: Settings, keyring: Keyring) -> None:
        self.keyring = keyring
        self.sessions = Sessions(keyring)
        self.read_only = settings.read_only
        # Browsers share cookies between the ports of one host, so the name carries the port.
        self.cookie = f"penstock-{settings.port}"
        self.cookie_path = settings.root_path or "/"
        self.cookie_secure = settings.public_url.startswith("https:")
        self.login_failures = Buckets(settings.limits.login_failures, settings.limits.login_rate)
        self.commands = Buckets(settings.limits.commands, settings.limits.command_rate)

    def identify(self, connection: HTTPConnection) -> Token | None:
        """The token behind a request: by header, else by cookie. A cookie does not make a wrong header
        good.
        """
        header = connection.headers.get("authorization")
        if header is not None:
            kind, _, secret = header.partition(" ")
            return self.keyring.find(secret.strip()) if kind.lower() == "bearer" else None
        cookie = connection.cookies.get(self.cookie)
        return self.sessions.find(cookie) if cookie else None

    def require(self, connection: HTTPConnection, scope: Scope) -> Token:
        """The token, if it has the scope; a problem says what is missing otherwise."""
        token = self.identify(connection)
        if token is None:
            raise Problem(
                401,
                "not-signed-in",
                "A valid token is needed: as `Authorization: Bearer …`, or sign in with POST /api/session.",
                headers={"WWW-Authenticate": 'Bearer realm="penstock"'},
            )
        if scope not in token.scopes:
            raise Problem(403, "missing-scope", f"The token “{token.name}” does not have the scope “{scope}”.")
        if scope == "control" and self.read_only:
            raise Problem(403, "read-only", "This dashboard was started with --read-only and takes no commands.")
        return token


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


def client_address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""
