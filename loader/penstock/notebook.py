"""A loader as the last expression of a notebook's cell: how it stands, and a link to its page on the dashboard.

A link and not a frame: the dashboard forbids other pages to frame it unless it was started with `--frame-ancestor`.
And a link without the token, because notebooks are passed on.
"""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

from . import discovery
from .protocol import Snapshot, loader_id
from .telemetry.address import Address, resolve
from .telemetry.report import report


def html(name: str, snapshot: Snapshot, publisher: Any, monitor: str | bool | None) -> str:
    """`publisher`: that of the loader, or nothing while it does not publish."""
    facts = escape(report(snapshot))
    return f"<p><b>{escape(name)}</b> · {_where(publisher, monitor)}</p><pre>{facts}</pre>"


def _where(publisher: Any, monitor: str | bool | None) -> str:
    address = resolve(monitor)
    if address is None:
        return "not published: set PENSTOCK_URL, or give <code>monitor=True</code>"
    if isinstance(address, Address):
        url = address.url
    elif (found := discovery.read()) is not None:
        url = found.url
    elif publisher:
        return "the dashboard is starting: show this again in a moment"
    else:
        return "the dashboard starts with the first epoch"
    identity = publisher.identity if publisher else None
    page = "" if identity is None else quote(loader_id(identity.run, identity.rank, identity.name), safe="")
    target = escape(f"{url}/#/loader/{page}" if page else f"{url}/")
    return f'<a href="{target}" target="_blank" rel="noopener">{target}</a>'
