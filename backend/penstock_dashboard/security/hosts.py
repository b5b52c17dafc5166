"""Which names this server answers to, and from which pages requests may come.

Against DNS rebinding: a page of an attacker can make a browser send requests here under a name that the
attacker controls. So the Host header must be a name we know. An IP address as Host is no such name (nobody
can rebind it), so addresses are allowed when the server listens on more than loopback; otherwise only
loopback ones are.

Against cross-site requests: an Origin header must be our own, that is, agree with Host or with the public
address.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")

DEFAULT_PORTS = {"http": 80, "https": 443}


def split_host(value: str) -> tuple[str, int | None] | None:
    """A Host header as (name in lower case without brackets and final dot, port), or None if it is
    malformed.
    """
    found = _HOST.fullmatch(value)
    if found is None:
        return None
    name = found["name"]
    if name.startswith("["):
        try:
            name = str(ipaddress.IPv6Address(name[1:-1]))
        except ValueError:
            return None
    port = int(found["port"]) if found["port"] else None
    return (name.lower().rstrip("."), port) if port is None or port < 65536 else None


def split_origin(value: str) -> tuple[str, str, int] | None:
    """An Origin header as (scheme, name, port), or None for "null" and anything that is not an origin."""
    scheme, separator, rest = value.partition("://")
    host = split_host(rest)
    if not separator or scheme not in DEFAULT_PORTS or host is None:
        return None
    return scheme, host[0], host[1] or DEFAULT_PORTS[scheme]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Hosts:
    """The names of this server, and the pages that may ask it."""

    def __init__(self, bind: str, public_url: str = "", more: tuple[str, ...] = ()) -> None:
        self._any_address = not is_loopback(bind)
        names = {"localhost", bind.lower(), *(name.lower().rstrip(".") for name in more)}
        if self._any_address:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        public = urlsplit(public_url)
        self._public: tuple[str, str, int] | None = None
        if public.hostname:
            names.add(public.hostname.lower())
            self._public = (
                public.scheme,
                public.hostname,
                public.port or DEFAULT_PORTS.get(public.scheme, 80),
            )
        self._names = names

    def allows(self, host: str | None) -> bool:
        """Whether a request with this Host header is meant for us."""
        parts = split_host(host) if host else None
        if parts is None:
            return False
        name = parts[0]
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback

    def allows_origin(self, origin: str, host: str, scheme: str) -> bool:
        """Whether this Origin is our own page, for a request that came to `host`."""
        parts = split_origin(origin)
        if parts is None:
            return False
        if parts == self._public:
            return True
        ours = split_host(host)
        if ours is None or (self._public and ours in ((self._public[1], None), self._public[1:])):
            return False  # under the public name only the public origin is ours, scheme included
        secure = "https" if scheme in ("https", "wss") else "http"
        return parts == (secure, ours[0], ours[1] or DEFAULT_PORTS[secure])
