"""What every command here has in common: which dashboard, which token, and what its exit status means."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from penstock import discovery
from penstock.telemetry.address import Address, Replicas, resolve

FINE, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3
STATUSES = "exit status: 0 fine, 1 not found or refused, 2 wrong usage, 3 the dashboard cannot be reached"
TARGETS = """\
RUN                all loaders of the run, on all ranks
RUN/LOADER         the loaders of that name, on all ranks
RUN/RANK/LOADER    one loader; run:rank:name, as the API has it, is the same"""


class Failure(Exception):
    """Ends a command; the text is for the person, the status for the script."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _SavedToken(msgspec.Struct, frozen=True):
    name: str
    token: str
    scopes: tuple[str, ...]


class _SavedTokens(msgspec.Struct, frozen=True):
    tokens: tuple[_SavedToken, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = STATUSES
    where = parser.add_argument_group("which dashboard (default: $PENSTOCK_URL, else the one on this machine)")
    where.add_argument(
        "--url", default=None, help="its address, for example http://127.0.0.1:8787; of replicas all, with commas"
    )
    where.add_argument(
        "--token-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="a file with the token, or the dashboard's tokens.json (default: $PENSTOCK_TOKEN, else this machine's)",
    )


def address_of(arguments: argparse.Namespace) -> Callable[[], Address]:
    """A function that says where the dashboard is: for every connection anew, since a restarted one may have moved."""
    token = read_token(arguments.token_file) if arguments.token_file is not None else ""
    try:
        # An empty --url is a variable that was not set, not a wish for the default.
        given = resolve(None if arguments.url is None else str(arguments.url))
    except ValueError as error:
        raise Failure(USAGE, str(error).replace("monitor", "--url", 1)) from None
    if isinstance(given, Address):
        address = Address(given.url, token or given.token)
        return address.find
    if isinstance(given, Replicas):
        return Replicas([Address(one.url, token or one.token) for one in given.addresses]).find
    token = token or os.environ.get("PENSTOCK_TOKEN", "").strip()

    def local() -> Address:
        found = discovery.read()
        if found is None:
            raise Failure(
                UNREACHABLE,
                "no dashboard runs on this machine. Start one with `penstock dashboard`, "
                "or say where it is with --url or $PENSTOCK_URL.",
            )
        return Address(found.url, token or found.token)

    return local


def read_token(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(USAGE, f"cannot read the token file: {error}") from None
    if text.startswith("{"):
        try:
            tokens = msgspec.json.decode(text, type=_SavedTokens).tokens
        except msgspec.DecodeError as error:
            raise Failure(USAGE, f"{path} is not a token file: {error}") from None
        best = max(tokens, key=lambda token: (token.name == "local", len(token.scopes)), default=None)
        text = best.token if best is not None else ""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise Failure(USAGE, f"{path} holds no token: one line of printable ASCII without spaces is expected")
    return text


def guarded(name: str, work: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Run a command; a failure becomes one line on stderr and an exit status."""

    def run(arguments: argparse.Namespace) -> int:
        try:
            status = work(arguments)
            sys.stdout.flush()
            return status
        except Failure as failure:
            print(f"penstock {name}: {failure}", file=sys.stderr)
            return failure.status
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FINE

    return run
