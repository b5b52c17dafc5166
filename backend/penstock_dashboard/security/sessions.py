"""Browser sessions: a signed cookie that says which token signed in, and until when; and a second half for the page.

It is signed with a key of its own and the token's secret together, so changing or removing the token ends its
sessions, while a restart of the backend does not. The secret is not in the cookie.

Browsers send a cookie to every port of a host, so whoever listens on another one can be sent ours. Hence the cookie
alone is worth nothing: with it must come the page's half, which our own page keeps in a storage that belongs to its
origin, port included, and which scripts have to send (`PAGE_HEADER`, or as a websocket's subprotocol). The page's half
alone is worth nothing either, and the cookie cannot be read by scripts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from ..security.tokens import Keyring, Token

LIFETIME = 7 * 86400
"""Seconds until a person has to sign in again."""
MOST_ENDED = 65_536
"""Sessions whose sign-out is remembered; beyond it, the oldest are not."""
PAGE_HEADER = "x-penstock-page"
SUBPROTOCOL = "penstock"
"""What a page's websocket speaks. Beside it, it offers `PAGE_SUBPROTOCOL` with its half, which browsers let it send."""
PAGE_SUBPROTOCOL = "penstock-page."


class Sessions:
    """Makes and checks what a browser shows to be known again."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self.on_end: Callable[[str], None] = lambda _session: None
        """Called with the digest of a session that was signed out, to tell other replicas."""
        self._ended: dict[str, float] = {}
        """Digests of sessions that were signed out, until they would have ended anyway."""

    def start(self, token: Token) -> tuple[str, str]:
        """A cookie and the page's half, for somebody who has just shown this token."""
        until = int(time.time()) + LIFETIME
        body = f"{token.name.encode().hex()}.{until}.{secrets.token_hex(8)}"
        return f"{body}.{self._sign('cookie', body, token)}", self._sign("page", body, token)

    def find(self, cookie: str, page: str) -> Token | None:
        body, _, signature = cookie.rpartition(".")
        parts = body.split(".")
        if len(cookie) > 1024 or len(parts) != 3 or not cookie.isascii() or not page.isascii():
            return None
        try:
            name, until = bytes.fromhex(parts[0]).decode(), int(parts[1])
        except ValueError:
            return None
        token = self._keyring.named(name)
        if token is None or until < time.time() or _digest(body) in self._ended:
            return None
        genuine = hmac.compare_digest(self._sign("cookie", body, token), signature)
        ours = hmac.compare_digest(self._sign("page", body, token), page)
        return token if genuine and ours else None

    def end(self, cookie: str, page: str) -> None:
        """Sign out. Remembered by this process; the browser is told to forget the cookie as well."""
        if self.find(cookie, page) is not None:
            session = _digest(cookie.rpartition(".")[0])
            self.ended(session)
            self.on_end(session)

    def ended(self, session: str) -> None:
        """A session was signed out, here or at another replica."""
        now = time.time()
        self._ended = {digest: until for digest, until in self._ended.items() if until > now}
        self._ended[session] = now + LIFETIME
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def _sign(self, half: str, body: str, token: Token) -> str:
        return hmac.digest(f"{self._keyring.key}:{token.token}".encode(), f"{half}:{body}".encode(), "sha256").hex()


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
