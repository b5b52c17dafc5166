"""A server for loaders to publish to, in a process of its own: it welcomes, acknowledges and forgets.

It is not the backend, so that what is timed is the loader alone and stays so while the backend grows.
Run as `python -m tests.benchmarks.server PORT`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http import HTTPStatus

import msgspec
from penstock import protocol
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response


class Server:
    """`with Server() as server: ... server.url`"""

    def __init__(self) -> None:
        port = unused_port()
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.server", str(port)])

    def __enter__(self) -> Server:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                self.received()
            except urllib.error.URLError:
                time.sleep(0.05)
            else:
                return self
        self.__exit__()
        raise RuntimeError("the benchmark's server did not start")

    def __exit__(self, *_: object) -> None:
        self.send(signal.SIGKILL)
        self._process.wait()

    def send(self, number: int) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def received(self) -> int:
        """How many messages it was sent."""
        with urllib.request.urlopen(f"{self.url}/received", timeout=5) as answer:
            return int(answer.read())


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Sink:
    """Takes what loaders send."""

    def __init__(self) -> None:
        self.received = 0

    async def take(self, connection: ServerConnection) -> None:
        decode = msgspec.msgpack.Decoder(protocol.ToBackend).decode
        encode = msgspec.msgpack.Encoder().encode
        acknowledged = time.monotonic()
        async for data in connection:
            self.received += 1
            message = decode(data if isinstance(data, bytes) else data.encode())
            if isinstance(message, protocol.Hello):
                who = message.identity
                name = protocol.loader_id(who.run, who.rank, who.name)
                await connection.send(encode(protocol.Welcome(protocol.PROTOCOL, name, at=time.time())))
            elif isinstance(message, protocol.Snapshot | protocol.Events | protocol.Goodbye) and (
                isinstance(message, protocol.Goodbye) or time.monotonic() - acknowledged >= 1
            ):  # as the backend does: when it has written to its disk, once a second
                acknowledged = time.monotonic()
                await connection.send(encode(protocol.Ack(message.seq)))

    def answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Plain HTTP asks how much was received; everything else is a loader's websocket."""
        if request.path != "/received":
            return None
        return connection.respond(HTTPStatus.OK, str(self.received))


async def main(port: int) -> None:
    sink = Sink()
    async with serve(sink.take, "127.0.0.1", port, process_request=sink.answer) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
