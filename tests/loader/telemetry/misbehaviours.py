"""Servers, by what they do with a connection. Each is a function for a `RawServer`."""

from __future__ import annotations

import base64
import hashlib
import itertools
import socket
import struct
import time
from collections.abc import Callable

import msgspec
from penstock.protocol import PROTOCOL, Refused, Welcome

Behaviour = Callable[[socket.socket], None]


def frame(data: bytes, opcode: int = 2, fin: bool = True) -> bytes:
    """As servers send them: not masked."""
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(data) < 126:
        return head + bytes([len(data)]) + data
    return (
        head
        + (b"\x7e" + struct.pack(">H", len(data)) if len(data) < 1 << 16 else b"\x7f" + struct.pack(">Q", len(data)))
        + data
    )


def upgrade(connection: socket.socket) -> None:
    """Complete the websocket handshake by hand."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(4096)
    (key,) = (line[18:].strip() for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def greet(connection: socket.socket, welcome: object = None) -> None:
    upgrade(connection)
    connection.recv(4096)  # the hello
    connection.sendall(frame(msgspec.msgpack.encode(welcome or Welcome(PROTOCOL, "id"))))


def dies_at_once(connection: socket.socket) -> None:
    connection.close()


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def dies_after_the_handshake(connection: socket.socket) -> None:
    upgrade(connection)
    connection.close()


def dies_after_the_welcome(connection: socket.socket) -> None:
    greet(connection)
    connection.close()


def answers_403(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nnever")


def answers_403_and_never_ends(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 500000\r\n\r\nnever")


def redirects(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n")


def is_no_http_server(connection: socket.socket) -> None:
    connection.sendall(b"220 mail.example.org ESMTP\r\n")


def sends_endless_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n")
    while True:
        connection.sendall(b"X: " + b"x" * 5000 + b"\r\n")


def sends_garbage(connection: socket.socket) -> None:
    upgrade(connection)
    connection.sendall(bytes(range(256)) * 50)


def sends_garbage_after_the_welcome(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(b"\xff" * 5000)


def sends_masked_frames(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(b"\x82\x85\x01\x02\x03\x04hello")


def sends_10_mb(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(frame(bytes(10 << 20)))


def sends_10_mb_in_pieces(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(frame(bytes(1000), fin=False))
    for _ in range(10 << 10):
        connection.sendall(frame(bytes(1024), opcode=0, fin=False))


def closes_in_order(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(frame(struct.pack(">H", 1012) + b"restarting", opcode=8))


def closes_with_an_impossible_code(connection: socket.socket) -> None:
    greet(connection)
    connection.sendall(frame(struct.pack(">H", 1), opcode=8))


def refuses_the_hello(connection: socket.socket) -> None:
    greet(connection, Refused("a later process publishes as run:0:train"))
    connection.close()


def speaks_another_version(connection: socket.socket) -> None:
    greet(connection, Welcome((PROTOCOL[0] + 1, 0), "id"))


def never_answers(connection: socket.socket) -> None:
    connection.recv(1)


def never_welcomes(connection: socket.socket) -> None:
    upgrade(connection)


def falls_silent(connection: socket.socket) -> None:
    """Stops reading and writing, and keeps the connection."""
    greet(connection)


def answers_byte_by_byte_and_never_ends(connection: socket.socket) -> None:
    for byte in itertools.cycle(b"HTTP/1.1 101 Switching Protocols\r\nX: y"):
        connection.sendall(bytes([byte]))
        time.sleep(0.005)


def floods(connection: socket.socket) -> None:
    greet(connection)
    while True:
        connection.sendall(frame(b"\xc1" * 100) * 500)


BEHAVIOURS: list[Behaviour] = [
    dies_at_once,
    resets,
    dies_after_the_handshake,
    dies_after_the_welcome,
    answers_403,
    answers_403_and_never_ends,
    redirects,
    is_no_http_server,
    sends_endless_headers,
    sends_garbage,
    sends_garbage_after_the_welcome,
    sends_masked_frames,
    sends_10_mb,
    sends_10_mb_in_pieces,
    closes_in_order,
    closes_with_an_impossible_code,
    refuses_the_hello,
    speaks_another_version,
    never_answers,
    never_welcomes,
    falls_silent,
    answers_byte_by_byte_and_never_ends,
]
