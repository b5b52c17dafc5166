"""The demo's dashboard: the one that is there, else one that the demo starts and that ends with it.

How ours ends:
1. When the interpreter does: that is registered before anything of the loader is imported, so it ends after the loader
   has said goodbye.
2. When the demo is killed: its end of a pipe closes, and the child, which reads the other end, sends itself SIGTERM.
It is in a process group of its own, for Ctrl-C would end it before the training.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from .. import discovery

PORT = 8787
PATIENCE = 3.0
"""Seconds that it has to end."""

_START = "import sys; sys.path.append(sys.argv.pop(1)); from penstock.demo.dashboard import serve; sys.exit(serve())"
"""The packages are found wherever this one is, but nothing in the current folder is taken for them."""


class NoDashboard(Exception):
    """It could not be started; why stands on stderr."""


def find_or_start(port: int | None) -> tuple[str, str]:
    """$PENSTOCK_URL's dashboard, the one that runs on this machine, or one that is started: where to publish, and the
    link for people, which has no token in it.

    port: None: 8787, or a free one if that is taken.
    """
    given = os.environ.get("PENSTOCK_URL", "").strip()
    if given:
        return given, given.partition("#")[0]
    found = discovery.read()
    if found is not None:
        if port is not None and urlsplit(found.url).port != port:
            print(
                f"A dashboard runs already at {found.url}: the demo reports to it, and --port is not used.", flush=True
            )
        return f"{found.url}/#token={found.token}", f"{found.url}/ (`penstock open` signs a browser in)"
    link = _start(_usual_or_free() if port is None else port)
    return link.partition("#")[0], link  # its token is in the discovery file


def _start(port: int) -> str:
    command = [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[2])]
    command += ["--port", str(port), "--data", ":memory:"]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", process_group=0
    )
    atexit.register(_end, child, os.getpid())
    assert child.stdout is not None
    link = re.search(r"https?://\S+", child.stdout.readline())
    if link is None:
        raise NoDashboard
    return link[0]


def _end(child: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() != owner:
        return  # a rank that was forked off
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _usual_or_free() -> int:
    from penstock_dashboard.ports import PortTaken, listen

    try:
        listen("127.0.0.1", PORT).close()
    except PortTaken:
        return 0
    return PORT


def serve() -> int:
    """The child."""
    from penstock_dashboard.cli import main

    threading.Thread(target=_end_with_demo, daemon=True).start()
    return main(["dashboard", *sys.argv[1:]])


def _end_with_demo() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)
