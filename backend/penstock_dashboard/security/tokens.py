"""Named tokens with scopes, kept in one file that only its owner can read."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

log = logging.getLogger("penstock.security")

Scope = Literal["publish", "view", "control"]
ALL_SCOPES: tuple[Scope, ...] = ("publish", "view", "control")


class Token(msgspec.Struct, frozen=True):
    """A secret, whose it is and what it is good for."""

    name: str
    """Who: it appears in the audit of commands."""
    token: str
    """The secret itself."""
    scopes: tuple[Scope, ...]


class TokenFile(msgspec.Struct, frozen=True):
    """What is in the file of tokens."""

    key: str
    """Signs session cookies, so that a restart does not sign everybody out."""
    tokens: tuple[Token, ...]
    version: int = 1


def generate() -> TokenFile:
    """What a first start makes: one token for everything, and one to give to people who only look."""
    return TokenFile(
        key=secrets.token_urlsafe(32),
        tokens=(
            Token("local", secrets.token_urlsafe(32), ALL_SCOPES),
            Token("viewer", secrets.token_urlsafe(32), ("view",)),
        ),
    )


class UnusableTokenFile(Exception):
    """The file is there but cannot be understood; guessing would let people in or lock them out."""


def load(path: Path) -> TokenFile:
    """Read the file, or make it. Permissions that let others read it are taken away, and that is said."""
    with _lock(path):
        if not path.exists():
            save(path, generate())
        mode = path.stat().st_mode
        if mode & 0o077:
            path.chmod(0o600)
            log.warning("%s could be read by others (mode %o); it is now private. Consider new tokens.", path, mode)
        try:
            return msgspec.json.decode(path.read_bytes(), type=TokenFile)
        except msgspec.DecodeError as error:
            raise UnusableTokenFile(f"{path} is not a token file: {error}") from error


def save(path: Path, content: TokenFile) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tokens-")  # mkstemp makes it 0600
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2))
    Path(temporary).replace(path)


def change(path: Path, tokens: tuple[Token, ...]) -> None:
    """Replace the tokens and keep the key."""
    content = load(path)
    with _lock(path):
        save(path, TokenFile(content.key, tokens))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two first starts at once must not make two files. One that is there can be read where nothing can be written."""
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = held.enter_context(path.with_name(f".{path.name}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            if not path.exists():
                raise
        yield


class Keyring:
    """The tokens that hold now. The file is looked at again when it changes, so a token can be taken away."""

    def __init__(self, path: Path | None, local_token: str = "") -> None:
        self._path = path
        self._local_token = local_token
        """Set by the environment: takes the place of the file's "local" token, and is never written."""
        self._checked = 0.0
        self._changed = 0
        self._content = self._read()

    @property
    def key(self) -> str:
        return self._content.key

    @property
    def local(self) -> Token:
        """The token for discovery and the printed link: "local" if there is one, else the most powerful."""
        tokens = self._tokens()
        named = [token for token in tokens if token.name == "local"]
        return named[0] if named else max(tokens, key=lambda token: len(token.scopes))

    def find(self, secret: str) -> Token | None:
        """The token with this secret. Every token is compared, each in constant time."""
        found = None
        given = secret.encode("utf-8", "surrogateescape")
        for token in self._tokens():
            if hmac.compare_digest(token.token.encode(), given):
                found = token
        return found

    def named(self, name: str) -> Token | None:
        return next((token for token in self._tokens() if token.name == name), None)

    def _tokens(self) -> tuple[Token, ...]:
        now = time.monotonic()
        if self._path is not None and now - self._checked > 1.0:
            self._checked = now
            try:
                if self._path.stat().st_mtime_ns != self._changed:
                    self._content = self._read()
            except (OSError, UnusableTokenFile) as error:
                log.warning("the token file cannot be read, the tokens known so far go on: %s", error)
        return self._content.tokens

    def _read(self) -> TokenFile:
        content = generate() if self._path is None else load(self._path)
        self._changed = 0 if self._path is None else self._path.stat().st_mtime_ns
        if self._local_token:
            others = tuple(token for token in content.tokens if token.name != "local")
            local = Token("local", self._local_token, ALL_SCOPES)
            content = TokenFile(content.key, (local, *others))
        if not content.tokens:
            raise UnusableTokenFile(f"{self._path} has no token; add one with `penstock tokens add NAME`")
        return content
