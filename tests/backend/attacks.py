"""What attackers do, for the tests: raw connections that keep to no rule but the one they need to get in."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from penstock.protocol import EpochEvent, Events, SlowSample, Snapshot, Worker

from tests.backend.harness import Address
from tests.patience import PATIENCE

MB = 1 << 20


def raw(server: Address, data: bytes = b"", buffer: int = 0) -> socket.socket:
    """A plain connection; with a small receive buffer, what is not read waits on the other side."""
    client = socket.socket()
    client.settimeout(PATIENCE)
    if buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.connect(("127.0.0.1", server.port))
    client.sendall(data)
    return client


def request(server: Address, path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *lines, "", ""]).encode()


def websocket(server: Address, path: str, token: str, buffer: int = 4096) -> socket.socket:
    """A websocket after its handshake, that never reads again unless told to."""
    lines = (
        f"Authorization: Bearer {server.secrets[token]}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    client = raw(server, request(server, path, *lines), buffer)
    said = b""
    while b"\r\n\r\n" not in said:
        said += client.recv(1)
    assert b" 101 " in said, said
    return client


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """A frame as clients send it, with a mask that changes nothing."""
    first = bytes([(0x80 if fin else 0) | opcode])
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    return first + length + b"\0\0\0\0" + payload


def hung_up(client: socket.socket) -> bool:
    """Whether the server has ended the connection, seen without reading from it."""
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def push(client: socket.socket, data: bytes, times: int) -> int:
    """Send over and over until the other side hangs up or takes nothing more; returns the bytes that it took."""
    taken = 0
    client.settimeout(2.0)
    with contextlib.suppress(OSError):
        for _ in range(times):
            taken += client.send(data)
    return taken


def large_events(seq: int, size: int) -> bytes:
    """A message of about so many bytes that the protocol allows."""
    each = 16_000
    events = [EpochEvent(1.0, "failed", seq, reason=os.urandom(each // 2).hex()) for _ in range(size // each)]
    return msgspec.msgpack.encode(Events(seq, list(events)))


def large_snapshot(seq: int, workers: int = 1024) -> Snapshot:
    """About 400 KB, which the protocol allows."""
    slowest = [SlowSample(os.urandom(125).hex(), 2**40 + n) for n in range(1000)]
    crowd = [Worker(n, 2**40 + n, "fetching", *(2**40 + n + field for field in range(12))) for n in range(workers)]
    return Snapshot(seq, time.time(), "running", workers=crowd, slowest=slowest)


def disk(folder: Path) -> int:
    """Bytes of all files in a folder."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size


class Peak:
    """The most that a folder took while somebody looked."""

    def __init__(self, folder: Path) -> None:
        self.bytes = 0
        self._folder = folder
        self._done = threading.Event()

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self.bytes = max(self.bytes, disk(self._folder))

    @contextlib.contextmanager
    def watching(self) -> Iterator[Peak]:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._done.set()
            thread.join(PATIENCE)
