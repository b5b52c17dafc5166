"""The `penstock` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from backend import dashboard, token_command
from backend.settings import VERSION

COMMANDS = (dashboard, token_command)
"""Modules with `add_parser(subparsers)`, each of which sets `run` to a function of the parsed arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock", description="A data loader that can be watched and tuned.")
    parser.add_argument("--version", action="version", version=f"penstock {VERSION}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
