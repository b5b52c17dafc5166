"""The agent: listens, has whoever dials prove that they know the token, and starts a session for each who does.

It unpickles nothing and reads no more than a fixed number of bytes from a stranger, for a few seconds, from a few of
them at a time. What follows happens in the session's process; see there for how everything ends. The agent has one
thread, so that sessions can be forked from it: they need not import torch again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import platform
import select
import signal
import socket
import struct
import time
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from ..telemetry.processors import affinity
from . import handshake
from .session import run_session
from .versions import versions

log = logging.getLogger("penstock.agent")

TO_PROVE = 5.0
"""Seconds that a stranger has to prove that it knows the token."""
MOST_STRANGERS = 32
"""Strangers at a time; when one more comes, the oldest must go."""
MOST_SESSIONS = 64
FIRST = 6
"""So many times longer than later an agent waits at first for somebody to serve: others may be starting still."""
TO_END = 8.0
"""Seconds that sessions have to end their workers when the agent ends."""
LENGTH = struct.Struct("<I")


class _Stranger:
    """Somebody who has not proved anything yet."""

    def __init__(self, sock: socket.socket, address: Any) -> None:
        self.socket = sock
        self.address = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
        self.since = time.monotonic()
        self.greeted = handshake.greeting()
        self.answered = b""
        sock.setblocking(False)


class Service:
    """`run` serves until a signal, or the end of `leash`, ends it."""

    def __init__(
        self, listener: socket.socket, token: bytes, leash: int | None = None, linger: float | None = None
    ) -> None:
        self._listener = listener
        listener.setblocking(False)
        self._token = token
        self._leash = leash
        """A descriptor whose end is the agent's, too."""
        self._linger = linger
        """Seconds after which it ends if it serves nobody any more."""
        self._has_served = False
        self._idle_since = time.monotonic()
        self._strangers: dict[int, _Stranger] = {}
        self._sessions: list[BaseProcess] = []
        self._lifeline, self._holder = os.pipe()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._over = False
        self._poll = select.poll()
        for descriptor in (listener.fileno(), self._wake, *([] if leash is None else [leash])):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> None:
        """Call it in the main thread: signals end it."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, _wake_up)
        try:
            while not self._over:
                timed = self._strangers or self._linger is not None
                for descriptor, _ in self._poll.poll(500 if timed else None):
                    self._hear(descriptor)
                self._send_away(time.monotonic() - TO_PROVE, "did not prove in time that it knows the token")
                self._reap()
                self._watch_idleness()
        finally:
            signal.set_wakeup_fd(-1)
            self._end()

    def _watch_idleness(self) -> None:
        if self._sessions:
            self._idle_since, self._has_served = time.monotonic(), True
        elif self._linger is not None:
            patience = self._linger if self._has_served else self._linger * FIRST
            self._over = self._over or time.monotonic() - self._idle_since > patience

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._over = True

    def _hear(self, descriptor: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor == self._wake:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        elif descriptor == self._leash:
            self._over = self._over or not os.read(descriptor, 4096)
        elif descriptor in self._strangers:
            self._hear_stranger(self._strangers[descriptor])

    # -- strangers ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:  # it is gone again, or there are too many descriptors
            return
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = min(self._strangers.values(), key=lambda each: each.since)
            self._send_away(oldest.since, "had to make room for others who have not proved anything either")
        stranger = _Stranger(sock, address)
        self._strangers[sock.fileno()] = stranger
        self._poll.register(sock, select.POLLIN)
        try:
            sock.send(stranger.greeted)  # a new connection has room for so little
        except OSError:
            self._forget(stranger).close()

    def _hear_stranger(self, stranger: _Stranger) -> None:
        try:
            got = stranger.socket.recv(handshake.ANSWER_SIZE - len(stranger.answered))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        stranger.answered += got
        if not got:
            self._forget(stranger).close()
        elif len(stranger.answered) == handshake.ANSWER_SIZE:
            self._judge(stranger)

    def _judge(self, stranger: _Stranger) -> None:
        sock = self._forget(stranger)
        said = handshake.verdict(self._token, stranger.greeted, stranger.answered)
        accepted = said.startswith(handshake.ACCEPTED)
        if accepted and len(self._sessions) >= MOST_SESSIONS:
            log.warning("%s was turned away: %d loaders are served already", stranger.address, MOST_SESSIONS)
            accepted = False
        elif not accepted:
            log.warning("%s was refused: it does not know the token", stranger.address)
        try:
            if not accepted:
                sock.send(said)
                return
            sock.send(said + _about())
            self._start(sock, stranger.address)
        except OSError:
            pass
        finally:
            sock.close()

    def _send_away(self, since: float, why: str) -> None:
        """Those that came no later than this have had their time."""
        for stranger in [each for each in self._strangers.values() if each.since <= since]:
            log.warning("%s %s", stranger.address, why)
            self._forget(stranger).close()

    def _forget(self, stranger: _Stranger) -> socket.socket:
        sock = stranger.socket
        self._poll.unregister(sock)
        del self._strangers[sock.fileno()]
        return sock

    # -- sessions -----------------------------------------------------------------------------------------------

    def _start(self, sock: socket.socket, address: str) -> None:
        process = multiprocessing.get_context("fork").Process(
            target=self._become_session, args=(sock,), name="penstock-session", daemon=False
        )
        process.start()
        self._sessions.append(process)
        log.info("%s: a loader's session began, pid %s", address, process.pid)

    def _become_session(self, sock: socket.socket) -> None:
        """In the forked process: keep nothing of the agent's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._listener.close()
        for stranger in self._strangers.values():
            stranger.socket.close()
        for descriptor in (self._holder, self._wake, self._waker):
            os.close(descriptor)
        run_session(sock, self._lifeline)

    def _reap(self) -> None:
        for session in [each for each in self._sessions if each.exitcode is not None]:
            log.info("session %s ended", session.pid)
            self._sessions.remove(session)
            session.close()

    def _end(self) -> None:
        self._listener.close()
        for stranger in list(self._strangers.values()):
            self._forget(stranger).close()
        os.close(self._holder)
        deadline = time.monotonic() + TO_END
        for session in self._sessions:
            session.join(max(deadline - time.monotonic(), 0.0))
            if session.exitcode is None:
                session.kill()
                session.join()


def _about() -> bytes:
    """What training is told of this machine."""
    about = {"host": platform.node(), "versions": versions(), "cores": len(affinity()) or 1}
    said = json.dumps(about).encode()
    return LENGTH.pack(len(said)) + said


def _wake_up(number: int, frame: FrameType | None) -> None:
    """A session has ended: the descriptor that the system writes to wakes the poll."""
