"""Real servers on the loopback interface: one that behaves, one of raw bytes, and a wire that can be cut."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from penstock.protocol import (
    PROTOCOL,
    Ack,
    Command,
    Event,
    Events,
    Goodbye,
    Hello,
    Load,
    Outcome,
    Snapshot,
    ToBackend,
    Welcome,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from tests.patience import PATIENCE

TOKEN = "token-of-the-tests"


def until(probe: Callable[[], object], what: str = "") -> Any:
    """Ask again and again until there is an answer."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.005)
    raise AssertionError(f"waited in vain for {what or probe}")


def blocked_signals(status: Path) -> set[int]:
    """Of a process or a thread, by its status file in /proc."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("SigBlk:"))
    mask = int(line.split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


class Heard:
    """What one incarnation of a loader has said, over all its connections."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.sequenced: dict[int, Snapshot | Events | Goodbye] = {}
        self.repeated = 0
        self.last_seq = -1
        self.outcomes: list[Outcome] = []

    def take(self, message: Snapshot | Events | Goodbye) -> None:
        if message.seq <= self.last_seq:
            self.repeated += 1
            return
        self.last_seq = message.seq
        self.sequenced[message.seq] = message

    @property
    def snapshots(self) -> list[Snapshot]:
        return [message for message in list(self.sequenced.values()) if isinstance(message, Snapshot)]

    @property
    def events(self) -> list[Event]:
        return [e for m in list(self.sequenced.values()) if isinstance(m, Events) for e in m.events]

    @property
    def said_goodbye(self) -> bool:
        return any(isinstance(message, Goodbye) for message in list(self.sequenced.values()))

    @property
    def holes(self) -> list[int]:
        return [seq for seq in range(self.last_seq + 1) if seq not in self.sequenced]


class GoodServer:
    """Keeps to the protocol: greets, remembers, acknowledges. It can be stopped and come back."""

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.loaders: dict[str, Heard] = {}
        self.acknowledging = True
        self.greeted = 0
        self.on_message: Callable[[ServerConnection, object], None] = lambda _socket, _message: None
        self.tokens: list[str | None] = []
        self.sockets: set[ServerConnection] = set()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self.port = port
        self._tls = tls
        self.pace_us = 0
        """What a welcome asks for."""
        self.start()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def only(self) -> Heard:
        """The only loader that has been here."""
        until(lambda: self.loaders, "a hello")
        (heard,) = self.loaders.values()
        return heard

    def start(self) -> None:
        self._server = serve(
            self._handle,
            "127.0.0.1",
            self.port,
            ssl=self._tls,
            compression=None,
            max_size=1 << 20,
            close_timeout=0.2,
        )
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End as a killed process does: every connection breaks."""
        assert self._server is not None and self._thread is not None
        for connection in list(self.sockets):
            _shut(connection.socket)
        self._server.shutdown()
        self._thread.join(PATIENCE)

    def send(self, message: object) -> None:
        """To every loader that is here."""
        sent = message.flat() if isinstance(message, Command) else message
        data = sent if isinstance(sent, bytes | str) else msgspec.msgpack.encode(sent)
        for connection in list(self.sockets):
            connection.send(data)

    def _handle(self, connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        self.tokens.append(request.headers.get("Authorization"))
        try:
            hello = _decode(connection.recv())
            assert isinstance(hello, Hello)
            heard = self.loaders.setdefault(hello.identity.incarnation, Heard(hello))
            connection.send(msgspec.msgpack.encode(Welcome(PROTOCOL, "id", heard.last_seq, interval_us=self.pace_us)))
            self.greeted += 1
            self.sockets.add(connection)
            self._converse(connection, heard)
        except (ConnectionClosed, OSError):
            pass
        finally:
            self.sockets.discard(connection)

    def _converse(self, connection: ServerConnection, heard: Heard) -> None:
        while True:
            message = _decode(connection.recv())
            assert not isinstance(message, Hello)
            if isinstance(message, Outcome):
                heard.outcomes.append(message)
            elif not isinstance(message, Load):
                heard.take(message)
                if self.acknowledging:
                    connection.send(msgspec.msgpack.encode(Ack(message.seq)))
            self.on_message(connection, message)


class RawServer:
    """Accepts connections and hands each to a function that does with it whatever it likes."""

    def __init__(self, behave: Callable[[socket.socket], None], port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.met = 0
        """Connections whose treatment is over or under way."""
        self._behave = behave
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        _shut(self._listener)
        self._listener.close()
        for connection in self._open:
            _shut(connection)
            connection.close()
        self._thread.join(PATIENCE)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._treat, args=(connection,), daemon=True).start()

    def _treat(self, connection: socket.socket) -> None:
        self.met += 1
        with contextlib.suppress(OSError):
            self._behave(connection)


class Wire:
    """Between a loader and a server: carries bytes both ways, and breaks after as many as it is told."""

    def __init__(self, target: int, limits: Callable[[], tuple[int, int]]) -> None:
        self._target = target
        self._limits = limits
        """For every new connection: bytes to carry towards the server, and back, before it breaks."""
        self._server = RawServer(self._carry)
        self.url = self._server.url
        self.stop = self._server.stop

    def _carry(self, near: socket.socket) -> None:
        there, back = self._limits()
        with socket.create_connection(("127.0.0.1", self._target)) as far:
            returning = threading.Thread(target=_copy, args=(far, near, back), daemon=True)
            returning.start()
            _copy(near, far, there)
            returning.join(PATIENCE)


def _copy(source: socket.socket, target: socket.socket, most: int) -> None:
    try:
        while most > 0 and (data := source.recv(min(most, 1 << 16))):
            target.sendall(data)
            most -= len(data)
    except OSError:
        pass
    finally:
        _shut(source)
        _shut(target)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _decode(data: str | bytes) -> ToBackend:
    assert isinstance(data, bytes)
    message: ToBackend = msgspec.msgpack.decode(data, type=ToBackend)
    return message
