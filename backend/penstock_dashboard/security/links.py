"""Links that sign in once: what is printed and passed on has no token in it, and is worth nothing once it was used.

They are kept in the store, so that they work at every replica, and once in all: as digests, of no use to a reader.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from ..security.tokens import Keyring, Token
from ..store import LinkStored, Store

LIFETIME = 600.0
"""Seconds for which a link that was asked for can be used."""


class Links:
    """Codes that sign in once, and have not yet."""

    def __init__(self, store: Store, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock

    async def make(self, token: Token, lifetime: float = LIFETIME) -> str:
        """A code for one sign-in with the scopes of this token."""
        code, link = self._link(token, lifetime)
        await self._store.put_link(link)
        return code

    def make_first(self, token: Token, lifetime: float) -> str:
        """The same before anything runs."""
        code, link = self._link(token, lifetime)
        self._store.put_link_now(link)
        return code

    async def use(self, code: str) -> Token | None:
        """The token behind a code, which is void from now on. A guess would have to hit 192 random bits."""
        link = await self._store.take_link(_digest(code))
        token = self._keyring.named(link.token) if link is not None else None
        if link is None or token is None or self._clock() > link.until:
            return None
        return token if hmac.compare_digest(link.proof, _proof(code, token)) else None

    def _link(self, token: Token, lifetime: float) -> tuple[str, LinkStored]:
        code = secrets.token_urlsafe(24)
        return code, LinkStored(_digest(code), token.name, _proof(code, token), self._clock() + lifetime)


def fragment(code: str) -> str:
    """What follows the dashboard's address; browsers do not send it anywhere."""
    return f"#once={code}"


def _digest(code: str) -> str:
    return hashlib.sha256(f"link {code}".encode()).hexdigest()


def _proof(code: str, token: Token) -> str:
    """A link ends with its token: when that is changed, this is another."""
    return hmac.digest(token.token.encode(), code.encode(), "sha256").hex()
