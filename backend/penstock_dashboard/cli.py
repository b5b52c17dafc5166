"""The `penstock` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from penstock.protocol import ORDERS

from .settings import VERSION

COMMANDS = {
    "run": "penstock.adoption.command",
    "dashboard": "penstock_dashboard.dashboard",
    "open": "penstock_dashboard.terminal.opening",
    "agent": "penstock.agent.command",
    "demo": "penstock.demo.command",
    "tokens": "penstock_dashboard.token_command",
    "top": "penstock_dashboard.terminal.top",
    "status": "penstock_dashboard.terminal.status",
    "report": "penstock_dashboard.terminal.reporting",
    "compare": "penstock_dashboard.terminal.comparing",
    "runs": "penstock_dashboard.terminal.run_places",
    **dict.fromkeys(ORDERS, "penstock_dashboard.terminal.orders"),
}
"""Command → module with `add_parser(subparsers)`, which sets `run` to a function of the parsed arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="penstock", description="A data loader that can be watched and tuned.")
    parser.add_argument("--version", action="version", version=f"penstock {VERSION}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # Only the module that is needed: the dashboard's takes a second to load, and scripts call `status` in loops.
    known = COMMANDS.get(given[0]) if given else None
    for module in dict.fromkeys([known] if known else COMMANDS.values()):
        import_module(module).add_parser(subparsers)
    chosen = parser.parse_args(given)
    try:
        return int(chosen.run(chosen))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
