"""`python -m penstock.agent`: `penstock agent`, without the dashboard's package."""

from __future__ import annotations

import argparse
import sys

from .command import add_parser

parser = argparse.ArgumentParser(prog="python -m penstock.agent")
add_parser(parser.add_subparsers(required=True))
arguments = parser.parse_args(["agent", *sys.argv[1:]])
sys.exit(arguments.run(arguments))
