"""Browser sessions: a signed cookie that says which token signed in, and until when.

It is signed with a key of its own and the token's secret together, so changing or removing the token ends its
sessions, while a restart of the backend does not. The secret is not in the cookie.
"""

from __future__ import annotations

import hmac
import secrets
import time

from ..security.tokens import Keyring, Token

LIFETIME = 7 * 86400
"""Seconds until a person has to sign in again."""


class Sessions:
    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._ended: dict[str, float] = {}
        """Sessions that were signed out, until they would have ended anyway."""

    def start(self, token: Token) -> str:
        """A cookie for somebody who has just shown this token."""
        until = int(time.time()) + LIFETIME
        body = f"{token.name.encode().hex()}.{until}.{secrets.token_hex(8)}"
        return f"{body}.{self._sign(body, token)}"

    def find(self, cookie: str) -> Token | None:
        body, _, signature = cookie.rpartition(".")
        parts = body.split(".")
        if len(cookie) > 1024 or len(parts) != 3 or not cookie.isascii():
            return None
        try:
            name, until = bytes.fromhex(parts[0]).decode(), int(parts[1])
        except ValueError:
            return None
        token = self._keyring.named(name)
        if token is None or until < time.time() or body in self._ended:
            return None
        return token if hmac.compare_digest(self._sign(body, token), signature) else None

    def end(self, cookie: str) -> None:
        """Sign out. Remembered by this process; the browser is told to forget the cookie as well."""
        if self.find(cookie) is not None:
            now = time.time()
            self._ended = {body: until for body, until in self._ended.items() if until > now}
            body = cookie.rpartition(".")[0]
            self._ended[body] = now + LIFETIME

    def _sign(self, body: str, token: Token) -> str:
        return hmac.digest(f"{self._keyring.key}:{token.token}".encode(), body.encode(), "sha256").hex()
