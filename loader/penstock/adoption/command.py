"""`penstock run`: an unchanged program, with torch's DataLoader replaced in it and in all that it starts.

The program takes this process's place, so that arguments, signals, output and exit status are as without us.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .environment import AUTOTUNE, NO_DASHBOARD, READ_ONLY, spread

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def add_parser(subparsers: Subparsers) -> None:
    # What looks like an option may be the program's: all of it is taken as it is, and looked at below.
    parser = subparsers.add_parser(
        "run", help="run a program, unchanged, on Penstock", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    given: list[str] = arguments.program
    own = next((at for at, word in enumerate(given) if word == "-m" or not word.startswith("-")), len(given))
    parser = _parser()
    options = parser.parse_args(given[:own])
    program = given[own:]
    if not program or program == ["-m"]:
        parser.error("what is to be run? For example: penstock run train.py --epochs 3")
    environment = dict(os.environ)
    wanted = {NO_DASHBOARD: options.no_dashboard, READ_ONLY: options.read_only, AUTOTUNE: options.autotune}
    spread(environment, [word for word, is_wanted in wanted.items() if is_wanted])
    command = _command(program)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        print(f"penstock run: {program[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock run",
        usage="penstock run [options] (script.py | -m module | command) [arguments]",
        description="Run a program with torch's DataLoader replaced by Penstock's, in it and in all that it starts.",
        epilog="Commands are torchrun …, accelerate launch …, python …, or any other that starts Python.",
        allow_abbrev=False,
    )
    parser.add_argument("--no-dashboard", action="store_true", help="publish only where PENSTOCK_URL says")
    steered = parser.add_mutually_exclusive_group()
    steered.add_argument("--read-only", action="store_true", help="nobody can pause or resize its loaders")
    steered.add_argument(
        "--autotune", action="store_true", help="find the number of workers of every loader that has some"
    )
    return parser


def _command(program: list[str]) -> list[str]:
    """The whole command. Python, and the commands that are installed beside it, are of the environment of ours."""
    name = program[0]
    if name == "-m" or name.endswith((".py", ".pyz")) or Path(name).is_dir():
        return [sys.executable, *program]
    folder = str(Path(sys.executable).parent)
    found = shutil.which(name) if os.sep in name else shutil.which(name, path=folder) or shutil.which(name)
    if found is None and Path(name).is_file():  # a script without a suffix, and without the right to be executed
        return [sys.executable, *program]
    return [found or name, *program[1:]]
