"""Where to publish: from `monitor=`, the environment, or the local dashboard's discovery file."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import msgspec

from .. import discovery
from ..adoption.environment import wants_dashboard
from .local import LocalDashboard

PUBLISH = "/ws/publish"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_PORTS = {"ws": 80, "wss": 443}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOKEN = re.compile(r"[!-~]{1,4096}")


class Address(msgspec.Struct, frozen=True):
    """Where a dashboard is, and the token for it."""

    url: str
    """The dashboard's address, for people: scheme, host, port and the proxy's prefix."""
    token: str = ""
    """Empty: that of the local dashboard, if it is this one."""

    @property
    def websocket(self) -> str:
        scheme, rest = self.url.split("://", 1)
        return f"{_SCHEMES[scheme]}://{rest}{PUBLISH}"

    @property
    def others(self) -> bool:
        """There is another address to try first."""
        return False

    def welcomed(self) -> None:
        """It let us in."""

    def find(self) -> Address:
        """The address with its token. Asked anew for every attempt: a restarted dashboard may have another one."""
        if self.token:
            return self
        found = discovery.read()
        if found is None or _place(found.url) != _place(self.url):
            return self
        return Address(self.url, found.token)


class LocalAddress:
    """The dashboard of this user on this machine, wherever it listens; one is started if there is none."""

    url = "the local dashboard"
    others = False

    def __init__(self) -> None:
        self._dashboard = LocalDashboard()

    def find(self) -> Address | None:
        """None: it is still starting."""
        found = self._dashboard.find()
        return None if found is None else Address(found.url, found.token)

    def welcomed(self) -> None:
        """It let us in."""


class Replicas:
    """Several dashboards that share their records: any of them will do, and when one does not answer, the next."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.addresses = tuple(addresses)
        self.url = ",".join(address.url for address in addresses)
        # A generator of its own: training's random numbers stay as they are. Loaders spread over all.
        self._place = random.Random().randrange(len(self.addresses))
        self._tried = 0

    @property
    def others(self) -> bool:
        """Some have not been tried since one let us in."""
        return self._tried < len(self.addresses)

    def welcomed(self) -> None:
        self._tried = 0

    def find(self) -> Address:
        """Each time the next: it is asked for every attempt to connect."""
        self._tried += 1
        self._place = (self._place + 1) % len(self.addresses)
        return self.addresses[self._place].find()


AnyAddress = Address | LocalAddress | Replicas


def resolve(monitor: bool | str | None) -> AnyAddress | None:
    """What the argument `monitor` means; None: do not publish.

    None: $PENSTOCK_URL if it is set, or under `penstock run` the local one. A URL: that dashboard; several, with commas
    between them: replicas. True: the local one. False: none.
    """
    if monitor is None:
        url = os.environ.get("PENSTOCK_URL", "").strip()
        if not url:
            return LocalAddress() if wants_dashboard() else None
        return _parse_all(url, "$PENSTOCK_URL")
    if isinstance(monitor, bool):
        return LocalAddress() if monitor else None
    if not isinstance(monitor, str):
        raise TypeError(f"monitor must be a URL, True, False or None, but got monitor={monitor!r}")
    return _parse_all(monitor.strip(), "monitor")


def _parse_all(text: str, origin: str) -> Address | Replicas:
    # Only where another address begins: a token may have commas in it.
    addresses = [_parse(part.strip(), origin) for part in re.split(r",(?=\s*[a-z]+://)", text)]
    return addresses[0] if len(addresses) == 1 else Replicas(addresses)


def _parse(text: str, origin: str) -> Address:
    shown = text.partition("#")[0]  # a token belongs in no error message
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{origin} must be a URL, but got {shown!r}: {error}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{origin} must be a URL such as http://127.0.0.1:8787, but got {shown!r}")
    if "@" in parts.netloc:
        raise ValueError(f"{origin} must not contain a user name or password; give the token as #token=…")
    if parts.query:
        raise ValueError(f"{origin} must not contain a query, but got {shown!r}; give the token as #token=…")
    token = _token(parts.fragment, origin)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix(PUBLISH).rstrip("/")
    scheme = "https" if _SCHEMES[parts.scheme] == "wss" else "http"
    return Address(f"{scheme}://{where}{path}", token)


def _token(fragment: str, origin: str) -> str:
    if fragment and not fragment.startswith("once="):  # a link that signs a browser in is an address all the same
        given = parse_qs(fragment).get("token", [""])[0]
        if not given:
            raise ValueError(f"the part of {origin} after # must be token=…")
    else:
        given, origin = os.environ.get("PENSTOCK_TOKEN", "").strip(), "$PENSTOCK_TOKEN"
    if given and not _TOKEN.fullmatch(given):
        raise ValueError(f"the token in {origin} must be printable ASCII without spaces")
    return given


def _place(url: str) -> tuple[str, int | None]:
    """Host and port, where all names of this machine's loopback are one."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    return "localhost" if host in _LOOPBACK else host, parts.port or _PORTS[_SCHEMES[parts.scheme]]
