"""Links that sign in once: what is printed and passed on has no token in it, and is worth nothing once it was used."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from ..security.tokens import Token

LIFETIME = 600.0
"""Seconds for which a link that was asked for can be used."""


class Links:
    """Codes that sign in once, and have not yet."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._waiting: dict[str, tuple[Token, float]] = {}
        """Code → the token it signs in with, and until when; oldest first."""

    def make(self, token: Token, lifetime: float = LIFETIME) -> str:
        """A code for one sign-in with the scopes of this token."""
        code = secrets.token_urlsafe(24)
        self._waiting[code] = (token, self._clock() + lifetime)
        if len(self._waiting) > self._most:
            del self._waiting[next(iter(self._waiting))]
        return code

    def use(self, code: str) -> Token | None:
        """The token behind a code, which is void from now on. A guess would have to hit 192 random bits."""
        token, until = self._waiting.pop(code, (None, 0.0))
        return token if self._clock() <= until else None


def fragment(code: str) -> str:
    """What follows the dashboard's address; browsers do not send it anywhere."""
    return f"#once={code}"
