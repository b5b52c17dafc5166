"""The live stream, in a thread of its own: it comes back by itself, and what it hears it hands to the main thread."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from penstock.protocol import FromViewer, Ping, Subscribe, ToViewer
from penstock.telemetry.address import PUBLISH
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from ..terminal.client import Client, is_loopback, unreachable
from ..terminal.options import Failure

Status = Literal["connecting", "open", "waiting"]
MOST = 16 << 20
"""Bytes in a message: an overview of thousands of loaders."""
PING_EVERY = 4.0
PATIENCE = 12.0
"""Silence after which a connection counts as dead although it did not say so, in seconds."""

_decoder = msgspec.json.Decoder(ToViewer)


class Feed:
    """The live stream, read in a thread of its own that connects again and again."""

    def __init__(
        self,
        client: Client,
        receive: Callable[[ToViewer], None],
        changed: Callable[[Status, str], None],
    ) -> None:
        """`receive` and `changed` (status, and why) are called in the feed's thread."""
        self._client = client
        self._receive = receive
        self._changed = changed
        self._lock = threading.Lock()
        self._socket: ClientConnection | None = None
        self._wanted = Subscribe(overview=True)
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="penstock-feed")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Not waited for: the process is about to end, and the thread with it."""
        self._stopping.set()
        self._hurry.set()
        with self._lock:
            socket, self._socket = self._socket, None
        if socket is not None:
            threading.Thread(target=socket.close, daemon=True).start()

    def subscribe(self, wanted: Subscribe) -> None:
        """From now on, and after every reconnection."""
        with self._lock:
            self._wanted = wanted
            if self._socket is not None:
                self._send(self._socket, wanted)

    def _run(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            self._changed("connecting", "")
            reason, opened = self._serve()
            attempt = 1 if opened else attempt + 1
            if self._stopping.is_set():
                return
            self._changed("waiting", reason)
            most = min(4.0, 0.25 * 2.0 ** min(attempt, 10))
            self._hurry.wait(most / 2 + random.random() * most / 2)

    def _serve(self) -> tuple[str, bool]:
        """One connection, to its end: why it ended, and whether it ever held."""
        opened = False
        try:
            address = self._client.find()
        except Failure as failure:
            return str(failure), False
        url = address.websocket.removesuffix(PUBLISH) + "/ws/live"
        headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        try:
            with connect(
                url,
                additional_headers=headers,
                proxy=None if is_loopback(address.url) else True,
                max_size=MOST,
                open_timeout=10.0,
                close_timeout=1.0,
                compression=None if is_loopback(address.url) else "deflate",
            ) as socket:
                with self._lock:
                    self._socket = socket
                    self._send(socket, self._wanted)
                opened = True
                self._changed("open", "")
                return self._listen(socket), True
        except InvalidStatus as error:
            return f"the dashboard refuses (HTTP {error.response.status_code}): is the token still good?", opened
        except (OSError, WebSocketException) as error:
            return str(unreachable(address, error)), opened
        finally:
            with self._lock:
                self._socket = None

    def _listen(self, socket: ClientConnection) -> str:
        heard = time.monotonic()
        while not self._stopping.is_set():
            try:
                data = socket.recv(timeout=PING_EVERY)
            except TimeoutError:
                if time.monotonic() - heard > PATIENCE:
                    return "the dashboard has fallen silent"
                self._send(socket, Ping())
                continue
            heard = time.monotonic()
            with contextlib.suppress(msgspec.DecodeError):  # a newer dashboard may say more than we understand
                self._receive(_decoder.decode(data))
        return ""

    def _send(self, socket: ClientConnection, message: FromViewer) -> None:
        with contextlib.suppress(WebSocketException, OSError):  # `recv` will say so too
            socket.send(msgspec.json.encode(message).decode())
