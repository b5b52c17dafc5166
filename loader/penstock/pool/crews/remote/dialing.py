"""Reaching an agent: dial, prove who we are, compare versions, and send the recipe. In a thread of its own.

The thread goes on until the agent is reached, or is known to be of no use, or nobody wants it any more. The recipe is
asked for only when an agent has answered, because pickling it may take long, and then is forgotten again.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ....agent import handshake
from ....agent import messages as m
from ....agent.luggage import Luggage
from ....agent.options import parsed
from ....agent.session import keep_alive
from ....agent.versions import differences, versions
from ...signals import Latch

PATIENCE = 5.0
"""Seconds that an agent has to answer."""
AGAIN = 3.0
"""Seconds until it is dialed again."""
LOOK = 0.1
"""Seconds between two looks at whether the recipe is there."""
_STUCK = 20.0
"""Seconds in which not a byte of the recipe is taken."""
_LENGTH = struct.Struct("<I")
_MOST_SAID = 1 << 16


class UnreachableError(Exception):
    """The agent does not answer; it may later."""


class UnfitError(Exception):
    """The agent answers, and is of no use: another token, or other versions."""


class Dialed(NamedTuple):
    """An agent that has answered."""

    address: str
    socket: socket.socket
    host: str
    cores: int
    slight: list[str]
    """Differences of versions that are worth a word."""


def dial(address: str, token: bytes, patience: float = PATIENCE) -> Dialed:
    """Reach an agent. Raises UnreachableError or UnfitError."""
    deadline = time.monotonic() + patience
    try:
        sock = socket.create_connection(parsed(address), timeout=patience)
    except OSError as error:
        raise UnreachableError(error.strerror or str(error)) from error
    try:
        greeted = _receive(sock, handshake.GREETING_SIZE, deadline)
        answered = handshake.answer(token, greeted)
        sock.sendall(answered)
        judged = _receive(sock, handshake.VERDICT_SIZE, deadline)
        handshake.check(token, greeted, answered, judged)
        (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size, deadline))
        about = json.loads(_receive(sock, min(length, _MOST_SAID), deadline))
        grave, slight = differences(versions(), about["versions"])
        if grave:
            raise UnfitError(f"it has {'; '.join(grave)}: install the same on both sides")
        keep_alive(sock)
    except OSError as error:
        sock.close()
        raise UnreachableError(f"it does not answer: {error.strerror or error}") from error
    except handshake.HandshakeError as error:
        sock.close()
        raise UnfitError(str(error)) from error
    except BaseException:
        sock.close()
        raise
    return Dialed(address, sock, about["host"], about["cores"], slight)


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    got = b""
    while len(got) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.01))
        chunk = sock.recv(size - len(got))
        if not chunk:
            raise ConnectionResetError(0, "it closed the connection")
        got += chunk
    return got


def send_recipe(sock: socket.socket, luggage: Luggage, base_seed: int, rows: int, max_retries: int) -> None:
    """Send it from where it lies; OSError if that does not work."""
    begin = m.Begin(luggage.pickled, luggage.origin, base_seed, rows, max_retries)
    packed = pickle.dumps((m.pack(begin), [len(view) for view in luggage.contents]), 5)
    sock.settimeout(_STUCK)
    sock.sendall(_LENGTH.pack(len(packed)) + packed)
    for view in luggage.contents:
        while len(view):
            view = view[sock.send(view[: 1 << 22]) :]  # noqa: PLW2901


class Dialer(threading.Thread):
    """Reaches one agent."""

    def __init__(
        self,
        address: str,
        token: bytes,
        send: Callable[[socket.socket, Luggage], None],
        reached: Callable[[Dialed], None],
        wants: Callable[[], None],
    ) -> None:
        """`reached` is called, in this thread, when the agent has the recipe; `wants` when that is to be given."""
        super().__init__(name="loader-dialer", daemon=True)
        self.address = address
        self.tried = Latch()
        """The first attempt is over."""
        self.reason = ""
        """Why it is not reached."""
        self.unfit = False
        """It will not be."""
        self._token = token
        self._send = send
        self._reached = reached
        self._wants = wants
        self._luggage: Luggage | None = None
        """None: it is to be asked for."""
        self._stopped = Latch()
        self._socket: socket.socket | None = None

    def give(self, luggage: Luggage | None) -> None:
        """The recipe, or that it is to be asked for again."""
        self._luggage = luggage

    def stop(self) -> None:
        """Nobody wants the agent any more."""
        self._stopped.set()
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        try:
            while not self._stopped.is_set() and not self._attempt():
                self.tried.set()
                self._stopped.wait(AGAIN)
        finally:
            self.tried.set()

    def _attempt(self) -> bool:
        """Is there nothing more to do?"""
        try:
            dialed = dial(self.address, self._token)
        except UnfitError as error:
            self.reason, self.unfit = str(error), True
            return True
        except UnreachableError as error:
            self.reason = str(error)
            return False
        self._socket = dialed.socket
        kept = False
        try:
            if self._luggage is None:
                self._wants()
            while (luggage := self._luggage) is None and not self._stopped.wait(LOOK):
                pass
            if luggage is not None and not self._stopped.is_set():
                self._send(dialed.socket, luggage)
                self.reason, kept = "", True
                self._reached(dialed)
        except OSError as error:
            self.reason, kept = f"the dataset could not be sent: {error.strerror or error}", False
        finally:
            self._luggage = self._socket = None
            if not kept:
                dialed.socket.close()
        return kept
