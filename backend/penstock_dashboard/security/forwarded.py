"""Who asked, if a proxy on this machine says so. What it says must be an address; anything else is ignored."""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.types import Scope

from ..security.hosts import is_loopback

SCHEMES = {"http": ("http", "ws"), "https": ("https", "wss")}


def forwarded(scope: Scope) -> Scope:
    """The scope with the client and the scheme that X-Forwarded-For and X-Forwarded-Proto name."""
    client = scope.get("client")
    if not client or not is_loopback(client[0]):
        return scope
    headers = Headers(scope=scope)
    scope = dict(scope)
    address = _client(",".join(headers.getlist("x-forwarded-for")))
    if address:
        scope["client"] = (address, 0)
    schemes = SCHEMES.get(headers.get("x-forwarded-proto", "").strip().lower())
    if schemes is not None:
        scope["scheme"] = schemes[scope["type"] == "websocket"]
    return scope


def _client(hops: str) -> str:
    """The last hop that is not a proxy of this machine: what stands before it, its sender may have made up."""
    for hop in reversed(hops.split(",")):
        address = _address(hop.strip())
        if not address or not is_loopback(address):
            return address
    return ""


def _address(text: str) -> str:
    """`1.2.3.4`, `1.2.3.4:5`, `::1` or `[::1]:5` without the port; empty if it is none of them."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""
