"""The dashboard of this user on this machine: found through its discovery file, else started.

It is started at most once per process, and by the first process of a machine only. A dashboard that starts while
another one is there already says so and ends by itself, so two trainings that begin together get one dashboard.
It belongs to nobody: it lives in a session of its own, so that it can still be looked at after the training, and ends
by itself some minutes after the last loader and viewer have left.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from .. import discovery

EXIT_WHEN_IDLE = 300
"""Seconds for which the dashboard stays when nobody is there any more."""

log = logging.getLogger("penstock")

_START = """
import sys
sys.path += sys.argv.pop(1).split(":")
from penstock_dashboard.cli import main
sys.exit(main())
"""
"""The packages are found wherever this one is, but nothing in the current folder is taken for them."""

_lock = threading.Lock()
_child: subprocess.Popen[bytes] | None = None
_started = False
_told: set[str] = set()


class LocalDashboard:
    """Its methods are called in the publisher's thread: training does not wait for a dashboard to start."""

    def __init__(self) -> None:
        self._leading = os.environ.get("LOCAL_RANK", "0") in ("", "0")
        self._found = False
        """There was one: if it is gone, somebody has ended it."""

    def find(self) -> discovery.Discovery | None:
        """The dashboard, or None while it is starting."""
        with _lock:
            found = discovery.read()
            if found is not None:
                self._found = True
                if self._leading:
                    _tell(found.url)
            elif self._leading and not self._found:
                self._start()
            return found

    def _start(self) -> None:
        global _child, _started
        if _child is not None and _child.poll() is not None:
            status, _child = _child.returncode, None
            if status:
                log.warning("the dashboard ended with status %d; see %s", status, _log_path())
        if _started:
            return  # once: somebody who ends it does not want it back
        _started = True
        command = [sys.executable, "-P", "-c", _START, _packages()]
        command += ["dashboard", "--port", "0", "--exit-when-idle", str(EXIT_WHEN_IDLE)]
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the child inherits it, and must hear SIGTERM
        try:
            with open(_open_log(), "wb") as errors:
                _child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("the dashboard could not be started: %s", error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _packages() -> str:
    """The folders of the two packages, as this process finds them."""
    dashboard = importlib.util.find_spec("penstock_dashboard")
    folders = [Path(__file__).parents[2]]
    if dashboard is not None and dashboard.origin is not None:
        folders.append(Path(dashboard.origin).parents[1])
    return ":".join(map(str, folders))


def _log_path() -> Path:
    return discovery.state_home() / "dashboard.log"


def _open_log() -> int:
    """A descriptor for what the dashboard complains of; where nothing can be written, nothing is kept of it."""
    path = _log_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _tell(url: str) -> None:
    """Without the token: notebooks and the logs of jobs are passed on."""
    if url not in _told:
        _told.add(url)
        print(f"Penstock is at {url}/ (`penstock open` signs a browser in)", file=sys.stderr, flush=True)


def _start_over_after_fork() -> None:
    """The lock may have been held by a thread that does not exist here."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_over_after_fork)
