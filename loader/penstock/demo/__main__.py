"""`python -m penstock.demo`: the same as `penstock demo`."""

from __future__ import annotations

import argparse
import sys

from . import command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.demo", description=command.DESCRIPTION)
    command.add_arguments(parser)
    return command.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
