"""Who is told of alerts besides the page: an address that takes JSON, a command. Both come from whoever starts the
dashboard, never from a client. Each has a thread of its own, so that one that is slow delays nobody else.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import queue
import shlex
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from typing import Any, Protocol

import msgspec
from penstock.protocol import Alert

log = logging.getLogger("penstock.alerts")

TRIES = 4
PAUSE = 2.0
"""Seconds before the second try; each time twice as long."""
PATIENCE = 10.0
"""Seconds that an address may take to answer, and a command to run."""
MOST = 256
"""Alerts that wait for one sender; beyond it, the oldest is dropped."""


class Told(msgspec.Struct, frozen=True):
    """What is sent."""

    state: str
    """`firing` or `ended`."""
    alert: Alert
    url: str
    """The loader's page."""


class Target(Protocol):
    """Where alerts are sent to."""

    def send(self, told: Told) -> None:
        """Called from the sender's thread; raises what went wrong."""

    def stop(self) -> None:
        """Called once from another thread: a `send` that is under way shall end soon."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address that sends us elsewhere is not the one that was meant."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts each alert as JSON."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __str__(self) -> str:
        return f"webhook {self._url.split('?')[0]}"

    def send(self, told: Told) -> None:
        request = urllib.request.Request(
            self._url, msgspec.json.encode(told), {"Content-Type": "application/json", "User-Agent": "penstock"}
        )
        with self._opener.open(request, timeout=PATIENCE) as answer:
            answer.read(1024)

    def stop(self) -> None:
        pass


class Command:
    """Runs a command for each alert: JSON on its standard input, the main things in its environment. No shell."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def __str__(self) -> str:
        return f"command {self._command[0]}"

    def send(self, told: Told) -> None:
        alert = told.alert
        named = {"STATE": told.state, "RULE": alert.rule, "LOADER": alert.loader, "TEXT": alert.text, "URL": told.url}
        with self._lock:
            if self._stopped:
                return
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {f"PENSTOCK_ALERT_{name}": value for name, value in named.items()},
                start_new_session=True,
            )
        try:
            process.communicate(msgspec.json.encode(told), timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise OSError(f"it did not end within {PATIENCE:.0f} s, and was killed") from None
        finally:
            self._end(process)
            with self._lock:
                self._process = None  # `stop` may come when its number is somebody else's
        if process.returncode and not self._stopped:
            raise OSError(f"it ended with {process.returncode}")

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """Whatever it started ends with it: they share a session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Sender:
    """Sends alerts to one target in the order in which they came, some times if need be."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._waiting: queue.Queue[Told] = queue.Queue(MOST)
        self._stopping = threading.Event()
        self.problem = ""
        """Why the last one could not be sent; empty: it could."""
        self._thread = threading.Thread(target=self._run, name="penstock-alerts", daemon=True)
        self._thread.start()

    def put(self, told: Told) -> None:
        while True:
            try:
                return self._waiting.put_nowait(told)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._waiting.get_nowait()

    def stop(self) -> None:
        self._stopping.set()
        self._target.stop()
        self._thread.join(1.0)  # an address that does not answer ends with the process

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                told = self._waiting.get(timeout=0.2)
            except queue.Empty:
                continue
            self._send(told)

    def _send(self, told: Told) -> None:
        pause = PAUSE
        for _ in range(TRIES):
            try:
                self._target.send(told)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._stopping.is_set():
                    return
                self.problem = f"{self._target}: {error}"[:256]
            else:
                self.problem = ""
                return
            if self._stopping.wait(pause):
                return
            pause *= 2
        log.warning("an alert could not be told to %s", self.problem)


class Senders:
    """All targets."""

    def __init__(self, targets: list[Target]) -> None:
        self._senders = [Sender(target) for target in targets]

    def tell(self, alert: Alert, url: str) -> None:
        told = Told("firing" if alert.ended is None else "ended", alert, url)
        for sender in self._senders:
            sender.put(told)

    @property
    def problems(self) -> list[str]:
        return [sender.problem for sender in self._senders if sender.problem]

    def stop(self) -> None:
        for sender in self._senders:
            sender.stop()
