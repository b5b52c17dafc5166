"""`penstock top`: the dashboard for people on SSH."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..terminal import options, targets
from ..terminal.client import Client
from ..terminal.options import REFUSED, TARGETS, USAGE, Failure
from ..terminal.targets import Target

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]


def add_parser(subparsers: Subparsers) -> None:
    about = "watch and steer loaders in the terminal"
    parser = subparsers.add_parser(
        "top", help=about, description=f"{about.capitalize()}; ? lists the keys.\n\n{TARGETS}"
    )
    options.add_options(parser)
    parser.add_argument(
        "target",
        type=targets.parse,
        nargs="?",
        metavar="TARGET",
        help="RUN, RUN/LOADER or RUN/RANK/LOADER (default: all)",
    )
    parser.set_defaults(run=options.guarded("top", _run))


def _run(arguments: argparse.Namespace) -> int:
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise Failure(USAGE, "this needs a terminal; `penstock status` prints the same facts once")
    client = Client(options.address_of(arguments))
    client.session()  # before the screen is taken: a wrong address or token is told in plain words
    target = _one_if_alone(client, arguments.target)
    from ..terminal.app import App
    from ..terminal.tty import Terminal

    with Terminal() as terminal:
        return App(client, terminal, target).run()


def _one_if_alone(client: Client, target: Target | None) -> Target | None:
    """A target that one loader matches opens that loader; else the table shows those it matches."""
    if target is None:
        return None
    rows = client.loaders()
    found = [row for row in rows if target.matches(row)]
    if not found:
        raise Failure(REFUSED, targets.not_found(target, rows))
    return targets.parse(found[0].id) if len(found) == 1 else target
