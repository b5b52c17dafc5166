"""Says to a real backend what real loaders said once, as if it were now."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from penstock.protocol import Command, Goodbye, Hello, Outcome, Snapshot, Welcome, loader_id
from penstock.telemetry.commands import decode
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from .recording import load, moved
from .shapes import SITUATIONS

STEP = 0.05
"""Seconds between two looks for what is to be said."""


class Replayed:
    """One recording on one connection, under a run, rank and name of its own. Runs in the loop of its `Fleet`.

    It is what it was: commands change nothing of it. They get no answer, or are rejected if `refusing` says why.
    At the end of the recording the training starts anew, as the same loader in its next incarnation.
    """

    def __init__(
        self, url: str, token: str, situation: str, run: str, name: str, rank: int, world_size: int, past: float
    ) -> None:
        parts = urlsplit(url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        self._address = f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/ws/publish"
        self._token = token
        self._recording = load(situation)
        self._identity = msgspec.structs.replace(
            self._recording.hello.identity, run=run, name=name, rank=rank, world_size=world_size
        )
        self.id = loader_id(run, rank, name)
        self.refusing = ""
        """A reason: commands are rejected with it."""
        self.batch = 0
        """Batches yielded in the epoch, as it was told last."""
        self._begins = time.time() - past
        self._incarnation = 0
        self._next = 0
        self._silent_since: float | None = None
        self._leaving = False
        self._socket: ClientConnection | None = None

    async def run(self) -> None:
        while not self._leaving:
            with contextlib.suppress(OSError, WebSocketException):
                await self._publish()
            await asyncio.sleep(STEP)

    async def _publish(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with connect(self._address, additional_headers=headers, proxy=None) as socket:
            self._socket = socket
            await socket.send(msgspec.msgpack.encode(self._hello()))
            welcome = decode(await socket.recv(decode=False))
            assert isinstance(welcome, Welcome), welcome
            self._next = welcome.last_seq + 1
            listening = asyncio.create_task(self._listen(socket))
            try:
                await self._speak(socket)
            finally:
                listening.cancel()

    def _hello(self) -> Hello:
        hello: Hello = moved(self._recording.hello, self._begins - self._recording.start)
        incarnation = f"{self._identity.incarnation}-{self._begins:.3f}-{self._incarnation}"
        return msgspec.structs.replace(hello, identity=msgspec.structs.replace(self._identity, incarnation=incarnation))

    async def _speak(self, socket: ClientConnection) -> None:
        messages = self._recording.messages
        while not self._leaving and self._next < len(messages):
            while self._next < len(messages) and self._is_due(messages[self._next][0]):
                message = moved(messages[self._next][1], self._begins - self._recording.start)
                if isinstance(message, Snapshot):
                    self.batch = message.batch
                self._next += 1
                await socket.send(msgspec.msgpack.encode(message))
            await asyncio.sleep(STEP)
        if self._leaving:
            await socket.send(msgspec.msgpack.encode(Goodbye(self._next)))
        else:
            self._begins, self._incarnation, self._next = time.time(), self._incarnation + 1, 0

    def _is_due(self, offset: float) -> bool:
        return not self._leaving and self._silent_since is None and self._begins + offset <= time.time()

    async def _listen(self, socket: ClientConnection) -> None:
        while True:
            message = decode(await socket.recv(decode=False))
            if isinstance(message, Command) and self.refusing:
                outcome = Outcome(message.id, "rejected", time.time(), reason=self.refusing)
                await socket.send(msgspec.msgpack.encode(outcome))

    # The rest is called through `Fleet.call`, in the fleet's own thread.

    def silence(self, silent: bool) -> None:
        """Stay connected and say nothing, as a process that is stopped; or go on."""
        if silent:
            self._silent_since = time.time()
        elif self._silent_since is not None:
            self._begins += time.time() - self._silent_since
            self._silent_since = None

    def leave(self) -> None:
        """End in an orderly way, with a goodbye."""
        self._leaving = True

    def vanish(self) -> None:
        """End as a killed process does: the connection breaks and nothing follows."""
        self._leaving = True
        if self._socket is not None:
            self._socket.transport.abort()


class Fleet:
    """Replayed loaders of one backend, in a thread of their own."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def replay(
        self,
        situation: str,
        run: str,
        name: str = "train",
        rank: int = 0,
        world_size: int = 1,
        past: float = 0.0,
    ) -> Replayed:
        """Begin to replay a recording, named as in `SITUATIONS`, as if it had begun `past` seconds ago."""
        replayed = Replayed(self._url, self._token, situation, run, name, rank, world_size, past)

        def start() -> None:
            self._tasks.append(self._loop.create_task(replayed.run()))

        self.call(start)
        return replayed

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in the fleet's thread and wait for what it returns."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def close(self) -> None:
        async def cancel() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def main() -> None:
    fleet = Fleet(sys.argv[1], sys.argv[2])
    for situation in SITUATIONS:
        fleet.replay(situation, situation, past=20.0)
    threading.Event().wait()


if __name__ == "__main__":
    main()
