"""`penstock status`: all loaders, or some, once."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from penstock.protocol import Detail, LoaderRow

from ..named import to_named
from ..terminal import options, overview, panels, targets
from ..terminal.canvas import EMPTY, Line, fitted, painted, plain
from ..terminal.client import Client
from ..terminal.facts import LoaderFacts, ordered, wanted
from ..terminal.options import FINE, REFUSED, TARGETS, Failure
from ..terminal.targets import Target
from ..terminal.tty import colourful

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]

MOST = 10_000
"""Rows of a table that nobody scrolls."""


def add_parser(subparsers: Subparsers) -> None:
    about = "print how all loaders are, or some"
    parser = subparsers.add_parser("status", help=about, description=f"{about.capitalize()}.\n\n{TARGETS}")
    options.add_options(parser)
    parser.add_argument("target", type=targets.parse, nargs="?", metavar="TARGET", help="default: all loaders")
    parser.add_argument("--json", action="store_true", help="print the API's facts, by name, and the verdict on each")
    parser.set_defaults(run=options.guarded("status", _run))


def _run(arguments: argparse.Namespace) -> int:
    client = Client(options.address_of(arguments))
    target: Target | None = arguments.target
    rows = client.loaders()
    chosen = ordered(row for row in rows if wanted(row, target))
    if target is not None and not chosen:
        raise Failure(REFUSED, targets.not_found(target, rows))
    alone = chosen[0].id if target is not None and len(chosen) == 1 else ""
    now = client.session().at
    if arguments.json:
        _print_json(client, chosen, alone, now)
        return FINE
    if not chosen:
        print("All runs are hidden; `penstock runs` lists them." if rows else "No loader has reported yet.")
        return FINE
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if alone:
        _show(_particulars(client, alone, columns or 120), columns)
    else:
        _show([*overview.table(chosen, _silence(now), columns), *overview.notices(chosen)], columns)
    return FINE


def _silence(now: float) -> Callable[[LoaderRow], float]:
    return lambda row: max(0.0, now - row.seen)


def _show(lines: Sequence[Line], columns: int | None) -> None:
    for line in lines:
        if columns is None:
            print(plain(line))
        else:
            print(painted(fitted(line, columns), colourful()))


def _facts(client: Client, identifier: str) -> LoaderFacts:
    """All that is known of one loader now, as `penstock top` would gather it."""
    facts = LoaderFacts(identifier)
    detail = client.loader(identifier)
    facts.receive(Detail(detail))
    facts.add_events(client.events(identifier))
    return facts


def _particulars(client: Client, identifier: str, columns: int) -> list[Line]:
    facts = _facts(client, identifier)
    verdict = facts.verdict
    lines = [*panels.header(facts, [], columns), EMPTY]
    if verdict is not None:
        lines += [*panels.verdict(verdict, columns, 20), EMPTY]
    lines += [*panels.times(facts, columns, colourful() and sys.stdout.isatty()), EMPTY]
    lines += [*panels.pipeline(facts, verdict.stage if verdict else None, columns), EMPTY]
    lines += [
        *panels.machines(facts),
        *panels.workers(facts, MOST, 0),
        *panels.costs(facts),
        EMPTY,
        *panels.events(facts, 10),
    ]
    return lines


def _print_json(client: Client, rows: Sequence[LoaderRow], alone: str, now: float) -> None:
    loaders = []
    for row in rows:
        told = {**_fields(row), "silence": round(max(0.0, now - row.seen), 3)}
        if alone:
            detail = client.loader(row.id)
            told |= {"config": detail.config, "snapshot": to_named(detail.snapshot), "verdict": detail.verdict}
        loaders.append(told)
    print(msgspec.json.encode({"at": now, "loaders": loaders}).decode())


def _fields(row: LoaderRow) -> dict[str, Any]:
    """As the API has it: whoever reads this should not have to count."""
    told = to_named(row)
    return {name: getattr(told, name) for name in told.__struct_fields__}
