"""`penstock open`: sign a browser in, by a link that can be used once."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from typing import TYPE_CHECKING, Any

from ..terminal.client import Client
from ..terminal.options import FINE, add_options, address_of, guarded

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("open", help="open the dashboard in a browser, signed in")
    add_options(parser)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the link, and open nothing")
    parser.set_defaults(run=guarded("open", run))


def run(arguments: argparse.Namespace) -> int:
    client = Client(address_of(arguments))
    link = client.link()
    print(f"{link.url or client.find().url}/{link.fragment}", flush=True)
    print(f"It signs one browser in, once, within {link.seconds / 60:.0f} minutes.", file=sys.stderr)
    if not arguments.only_print and has_screen():
        webbrowser.open(f"{link.url or client.find().url}/{link.fragment}")
    return FINE


def has_screen() -> bool:
    """Whether a browser that is started here is seen: not so over ssh, in a container or in a job."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
