"""`penstock report`: a run as one HTML file that can be sent to somebody."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.protocol import label

from ..terminal.client import Client
from ..terminal.options import FINE, REFUSED, Failure, add_options, address_of, guarded

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]


def add_parser(subparsers: Subparsers) -> None:
    about = "save a run as one HTML file that opens anywhere"
    parser = subparsers.add_parser(
        "report",
        help=about,
        description=f"{about.capitalize()}: charts, verdicts, receipts, profile, events. It needs no network.",
    )
    add_options(parser)
    parser.add_argument("name", metavar="RUN", help="the run, as `penstock status` lists it")
    parser.add_argument("-o", "--output", type=Path, default=None, metavar="FILE", help="default: RUN-report.html")
    parser.set_defaults(run=guarded("report", _run))


def _run(arguments: argparse.Namespace) -> int:
    report = Client(address_of(arguments)).report(arguments.name)
    path: Path = arguments.output or Path(f"{label(arguments.name)}-report.html")
    try:
        path.write_bytes(report)
    except OSError as error:
        raise Failure(REFUSED, f"cannot write the report: {error}") from None
    print(f"{path} ({len(report) / 1e6:.1f} MB)")
    return FINE
