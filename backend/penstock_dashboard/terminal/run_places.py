"""`penstock runs`: which runs there are; pin, hide, show and delete them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.insight.words import ago, plural
from penstock.protocol import KnownRun, Place

from ..terminal.client import Client
from ..terminal.options import FINE, REFUSED, Failure, add_options, address_of, guarded

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]

PLACES: dict[str, Place] = {"pin": "pinned", "hide": "hidden", "show": "shown"}
"""What is typed → where the run then stands."""
ACTIONS = {
    "list": "all runs, hidden ones too",
    "pin": "keep runs above the others, and longer than they are kept",
    "hide": "leave runs out of the overview",
    "show": "show runs as others are: not pinned, not hidden",
    "delete": "delete runs with all that is stored of them",
    "log": "who pinned, hid, showed and deleted runs",
}


def add_parser(subparsers: Subparsers) -> None:
    about = "list runs; pin, hide, show and delete them"
    what = "\n".join(f"{action:<8}{meaning}" for action, meaning in ACTIONS.items())
    parser = subparsers.add_parser("runs", help=about, description=f"{about.capitalize()}.\n\n{what}")
    add_options(parser)
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", help="default: list")
    parser.add_argument("names", nargs="*", metavar="RUN", help="the runs that it is done to")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.set_defaults(run=guarded("runs", _run))


def _run(arguments: argparse.Namespace) -> int:
    client = Client(address_of(arguments))
    action, names = arguments.action, list(dict.fromkeys(arguments.names))
    if action == "list":
        _list(client, names)
    elif action == "log":
        for change in client.run_changes(names[0] if len(names) == 1 else None):
            if not names or change.run in names:
                print(f"{ago(client.session().at - change.at):>10}  {change.run}: {change.text}")
    elif not names:
        raise Failure(REFUSED, f"{action} which runs? `penstock runs` lists them.")
    elif action == "delete":
        _delete(client, names, arguments.yes)
    else:
        for name in names:
            print(f"{name}: {client.place(name, PLACES[action]).place}")
    return FINE


def _list(client: Client, names: Sequence[str]) -> None:
    now, known = client.session().at, client.runs()
    missing = [name for name in names if name not in {run.run for run in known}]
    if missing:
        raise Failure(REFUSED, f"no run {', '.join(missing)}")
    shown = [run for run in known if not names or run.run in names]
    widest = max((len(run.run) for run in shown), default=0)
    for run in shown:
        print(f"{run.run:<{widest}}  {_about(run):<34}  {ago(now - run.seen)}".rstrip())
    if not known:
        print("No loader has reported yet.")


def _about(run: KnownRun) -> str:
    told = [plural(run.loaders, "loader"), f"{run.connected} connected" if run.connected else ""]
    return ", ".join(filter(None, [*told, run.place if run.place != "shown" else ""]))


def _delete(client: Client, names: Sequence[str], sure: bool) -> None:
    if not sure:
        if not sys.stdin.isatty():
            raise Failure(REFUSED, "say --yes to delete without being asked")
        answer = input(f"Delete {', '.join(names)} with all that is stored of {'it' if len(names) == 1 else 'them'}? ")
        if answer.strip().lower() not in ("y", "yes"):
            raise Failure(REFUSED, "nothing was deleted")
    for name in names:
        print(f"{name}: {client.delete(name).text}")
