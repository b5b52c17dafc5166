"""`penstock agent`: lend this machine's processors to training on another."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

from .options import TOKEN, checked_token, parsed

PORT = 7765


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "agent",
        help="make batches for training that runs on another machine",
        description="Wait for training on another machine, and run workers for it here. Whoever knows the token can "
        "run any code here, and nothing is encrypted: use a network that you trust, or a tunnel.",
    )
    parser.add_argument(
        "--bind",
        default=f"127.0.0.1:{PORT}",
        metavar="HOST:PORT",
        help="where to listen; port 0: any that is free (default: %(default)s)",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=f"file with the token (default: ${TOKEN})")
    parser.add_argument("--tethered", action="store_true", help="end when standard input ends")
    parser.add_argument(
        "--linger",
        type=float,
        metavar="SECONDS",
        help="end when nobody is served any more for so long, or at first for six times as long (default: never)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(format="penstock agent: %(message)s", level=logging.INFO)
    try:
        given = os.environ.pop(TOKEN, None)  # workers run code of training, which need not know it
        if options.token_file is not None:
            given = options.token_file.read_text().strip()
        token = checked_token(given, "--token-file")
        host, port = parsed(options.bind)
        from .service import Service  # imports torch, which takes a while: nobody is to wait for an answer meanwhile

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=64)
    except (OSError, ValueError) as error:
        print(f"penstock agent: {error}", file=sys.stderr)
        return 2
    bound = listener.getsockname()
    print(f"listening on {f'[{host}]' if ':' in host else host}:{bound[1]}", flush=True)
    Service(listener, token, sys.stdin.fileno() if options.tethered else None, options.linger).run()
    return 0
