"""`penstock compare`: two stretches of time side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..terminal.client import Client
from ..terminal.options import FINE, add_options, address_of, guarded

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]

STRETCHES = """\
RUN                        of the loader of its first rank that yielded most: all that is stored
RUN:RANK:LOADER            all that is stored of one loader
RUN:RANK:LOADER@epoch:3    one epoch
RUN:RANK:LOADER@FROM-TO    a time, in Unix seconds
RUN:RANK:LOADER@before:AT  before the last resize up to that moment, and @after:AT after it"""


def add_parser(subparsers: Subparsers) -> None:
    about = "compare two runs, epochs or stretches of time"
    parser = subparsers.add_parser("compare", help=about, description=f"{about.capitalize()}.\n\n{STRETCHES}")
    add_options(parser)
    parser.add_argument("a", metavar="FIRST", help="a stretch of time")
    parser.add_argument("b", metavar="SECOND", help="another one")
    parser.set_defaults(run=guarded("compare", _run))


def _run(arguments: argparse.Namespace) -> int:
    found = Client(address_of(arguments)).compare(arguments.a, arguments.b)
    table = [["", "first", "second", "difference"]]
    table += [[each.label, each.a_text, each.b_text, each.difference] for each in found.numbers]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for word, side in (("first", found.a), ("second", found.b)):
        print(f"{word:<6}  {side.loader}, {side.title}: {side.verdict.verdict} {side.verdict.sentence}")
    print(found.sentence)
    for name, left, right, difference in table:
        line = f"  {name:<{widths[0]}}  {left:>{widths[1]}}  {right:>{widths[2]}}  {difference:>{widths[3]}}"
        print(line.rstrip())
    return FINE
