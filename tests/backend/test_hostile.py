"""Clients that do not play by the rules. The server must outlive them, and others must not notice."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.protocol import MAX_MESSAGE
from penstock_dashboard.settings import Limits, Settings
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tests.backend.harness import BRISK, Address, Running, serving, until
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with little patience."""
    folder = tmp_path_factory.mktemp("strict")
    limits = Limits(handshake=0.5, idle=0.5, publishers=4, viewers=4, guests=16, strangers=16)
    with serving(Settings(timing=BRISK, limits=limits), folder) as server:
        yield server


def raw(server: Address, data: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    client.sendall(data)
    return client


def closed(client: socket.socket) -> bytes:
    """Everything the server says until it hangs up."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            said += part
    client.close()
    return said


def head(server: Address, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"GET / HTTP/1.1\r\n", b"GET /ws/live HTTP/1.1\r\nHost: localhost\r\nUpgrade: webs", b"\x16\x03\x01"],
)
def test_a_request_that_never_ends_is_hung_up_on(strict: Running, data: bytes) -> None:
    assert b"200" not in closed(raw(strict, data))


def test_a_body_that_never_comes_is_hung_up_on(strict: Running) -> None:
    lines = "Content-Type: application/json", "Content-Length: 50"
    request = head(strict, "/api/session", *lines).replace(b"GET", b"POST", 1)
    assert b"408" in closed(raw(strict, request + b'{"tok'))


def test_a_websocket_that_says_nothing_is_hung_up_on(strict: Running) -> None:
    def is_hung_up_on() -> bool:
        # A busy machine may not get through the handshake in time; then it is tried again.
        with contextlib.suppress(InvalidHandshake, TimeoutError, OSError), strict.websocket("/ws/publish") as silent:
            with contextlib.suppress(ConnectionClosed):
                silent.recv(timeout=PATIENCE)
            return silent.close_code == 1008
        return False

    until(is_hung_up_on)


def test_many_slow_handshakes_do_not_keep_others_out(strict: Running) -> None:
    """More half-open connections than there are seats: they are cut, and a real client gets in."""
    slow = [raw(strict, b"GET / HTTP/1.1\r\nX-Slow: ") for _ in range(60)]
    try:

        def served() -> bool:
            with contextlib.suppress(Exception), strict.http(None) as client:
                return client.get("/healthz").status_code == 200
            return False

        until(served)
    finally:
        for client in slow:
            client.close()


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    ],
)
def test_malformed_http_is_answered_with_a_client_error(server: Running, request_line: bytes) -> None:
    client = raw(server)
    with contextlib.suppress(ConnectionError):  # the server may hang up before it has read everything
        client.sendall(request_line)
    first_line = closed(client).split(b"\r\n", 1)[0]
    assert first_line == b"" or first_line.split()[1][:1] == b"4", first_line
    assert server.get("/healthz")["status"] == "ok"


def test_seats_are_limited_and_given_back(folder: Path) -> None:
    settings = Settings(timing=BRISK, limits=Limits(publishers=4, viewers=4))  # of which one token has three
    with serving(settings, folder) as server:
        with contextlib.ExitStack() as seats:
            for _ in range(3):
                seats.enter_context(server.viewer())
            with pytest.raises(InvalidStatus) as refused:
                server.websocket("/ws/live")
            assert refused.value.response.status_code == 503
            for rank in range(3):
                seats.enter_context(server.loader("seats", rank=rank))
            with pytest.raises(InvalidStatus):
                server.websocket("/ws/publish")
        until(lambda: server.get("/api/status")["viewers"] == 0)

        def admitted() -> bool:
            with contextlib.suppress(InvalidStatus), server.viewer():
                return True
            return False

        until(admitted)


def test_oversized_and_broken_frames_end_only_their_own_connection(server: Running) -> None:
    with server.loader("steady") as steady, server.viewer() as viewer:
        viewer.subscribe(steady.id)
        handshake = (
            f"Authorization: Bearer {server.secrets['local']}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        )
        for path in ("/ws/live", "/ws/publish"):
            for frame in (
                b"\x81\xff" + (MAX_MESSAGE * 4).to_bytes(8, "big") + b"\0\0\0\0",  # announces 4 MiB
                b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0",  # announces more than there is in the world
                b"\x81\x05hello",  # not masked
                b"\xf1\x80\0\0\0\0",  # reserved bits
                b"\x81\x82\0\0\0\0\xff\xfe",  # text that is not UTF-8
                os.urandom(500),
            ):
                client = raw(server, head(server, path, *handshake))
                assert b"101" in client.recv(4096)
                with contextlib.suppress(ConnectionError):
                    client.sendall(frame)
                    client.shutdown(socket.SHUT_WR)
                closed(client)
        steady.snapshot()
        steady.acknowledged(steady.seq - 1)


def test_a_flood_from_one_loader_is_slowed_down_and_nothing_is_lost(folder: Path) -> None:
    limits = Limits(message_rate=200.0, message_burst=100.0)
    settings = Settings(timing=BRISK, limits=limits)
    with serving(settings, folder) as server, server.loader("flood") as flood, server.loader("calm") as calm:
        sender = threading.Thread(target=lambda: [flood.snapshot() for _ in range(300)], daemon=True)
        sender.start()
        calm.snapshot()
        calm.acknowledged(0)
        sender.join(PATIENCE)
        flood.acknowledged(299)
        entry = server.backend.registry.get(flood.id)
        assert entry is not None and entry.missed == 0
