"""`penstock tokens`: who may do what."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.discovery import state_home

from .security.tokens import ALL_SCOPES, Token, UnusableTokenFile, change, load

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Any]


def default_token_file() -> Path:
    return state_home() / "tokens.json"


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("tokens", help="list, add or remove tokens")
    parser.add_argument("--token-file", type=Path, default=None, help="default: the dashboard's")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="names and scopes")
    listing.set_defaults(run=_list)
    adding = actions.add_parser("add", help="make a token and print it")
    adding.add_argument("name")
    adding.add_argument("--scope", action="append", choices=ALL_SCOPES, help="repeatable; default: view")
    adding.set_defaults(run=_add)
    removing = actions.add_parser("remove", help="take a token away; its sessions end")
    removing.add_argument("name")
    removing.set_defaults(run=_remove)


def _list(arguments: argparse.Namespace) -> int:
    for token in load(_path(arguments)).tokens:
        print(f"{token.name}\t{' '.join(token.scopes)}")
    return 0


def _add(arguments: argparse.Namespace) -> int:
    path = _path(arguments)
    tokens = load(path).tokens
    name: str = arguments.name
    if not name.isprintable() or not 0 < len(name) <= 64:
        return _fail("a token's name has 1 to 64 printable characters")
    if any(token.name == name for token in tokens):
        return _fail(f"there is a token “{name}” already; remove it first")
    token = Token(name, secrets.token_urlsafe(32), tuple(dict.fromkeys(arguments.scope or ["view"])))
    change(path, (*tokens, token))
    print(token.token)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    path = _path(arguments)
    tokens = load(path).tokens
    rest = tuple(token for token in tokens if token.name != arguments.name)
    if len(rest) == len(tokens):
        return _fail(f"there is no token “{arguments.name}” in {path}")
    if not rest:
        return _fail("that is the last token; without one nobody could sign in")
    change(path, rest)
    return 0


def _path(arguments: argparse.Namespace) -> Path:
    path: Path = arguments.token_file or default_token_file()
    try:
        load(path)
    except UnusableTokenFile as error:
        sys.exit(_fail(str(error)))
    return path


def _fail(reason: str) -> int:
    print(f"penstock tokens: {reason}", file=sys.stderr)
    return 1
