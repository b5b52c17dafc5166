"""A loader as the last expression of a notebook's cell: how it stands, and its page on the dashboard.

The page itself, live in a frame, if the dashboard of this machine was started with `--frame-ancestor`; it forbids other
pages to frame it otherwise, and a link has to do. Both without the token, because notebooks are passed on.
"""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

from . import discovery
from .protocol import Snapshot, loader_id
from .telemetry.address import Address, Replicas, resolve
from .telemetry.report import report


def html(name: str, snapshot: Snapshot, publisher: Any, monitor: str | bool | None) -> str:
    """`publisher`: that of the loader, or nothing while it does not publish."""
    facts, (where, frame) = escape(report(snapshot)), _where(publisher, monitor)
    return f"<p><b>{escape(name)}</b> · {where}</p>{frame}<pre>{facts}</pre>"


def _where(publisher: Any, monitor: str | bool | None) -> tuple[str, str]:
    """A link or why there is none; and a frame, if there may be one."""
    address, found = resolve(monitor), discovery.read()
    if address is None:
        return "not published: set PENSTOCK_URL, or give <code>monitor=True</code>", ""
    if isinstance(address, Address):
        url = address.url
    elif isinstance(address, Replicas):
        url = address.addresses[0].url
    elif found is not None:
        url = found.url
    elif publisher:
        return "the dashboard is starting: show this again in a moment", ""
    else:
        return "the dashboard starts with the first epoch", ""
    identity = publisher.identity if publisher else None
    page = "" if identity is None else quote(loader_id(identity.run, identity.rank, identity.name), safe="")
    target = escape(f"{url}/#/loader/{page}" if page else f"{url}/")
    frame = f'<iframe src="{target}" style="width: 100%; height: 40em; border: 0"></iframe>'
    framed = found is not None and found.framed and found.url == url
    return f'<a href="{target}" target="_blank" rel="noopener">{target}</a>', frame if framed else ""
