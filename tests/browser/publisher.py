"""Sends what simulated loaders say to a real backend, as a real publisher would, and obeys its commands."""

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
from penstock.protocol import Command, Events, Goodbye, Outcome, Pause, Welcome, loader_id
from penstock.telemetry.commands import decode
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from .simulated import Scenario, SimulatedLoader

INTERVAL = 0.2


class Publisher:
    """One loader on one connection. Runs in the loop of its `Fleet`."""

    def __init__(self, url: str, token: str, scenario: Scenario, past: float = 0.0) -> None:
        parts = urlsplit(url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        self._address = f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/ws/publish"
        self._token = token
        self.simulated = SimulatedLoader(scenario, time.time() - past)
        self.id = loader_id(scenario.run, scenario.rank, scenario.name)
        self.obeying = True
        """False: commands are received and never answered."""
        self.refusing = ""
        """A reason: commands are rejected with it."""
        self._backlog: list[object] = []
        self._silent = False
        self._leaving = False
        self._socket: ClientConnection | None = None
        self._played = time.time() - past

    async def run(self) -> None:
        while not self._leaving:
            with contextlib.suppress(OSError, WebSocketException):
                await self._publish()
            await asyncio.sleep(0.3)

    async def _publish(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with connect(self._address, additional_headers=headers) as socket:
            self._socket = socket
            await socket.send(msgspec.msgpack.encode(self.simulated.hello()))
            welcome = decode(await socket.recv(decode=False))
            assert isinstance(welcome, Welcome), welcome
            self._backlog = [m for m in self._backlog if m.seq > welcome.last_seq]  # type: ignore[attr-defined]
            for message in self._backlog:
                await socket.send(msgspec.msgpack.encode(message))
            listening = asyncio.create_task(self._listen(socket))
            try:
                await self._speak(socket)
            finally:
                listening.cancel()

    async def _speak(self, socket: ClientConnection) -> None:
        while not self._leaving:
            if not self._silent:
                for message in self._due():
                    self._backlog.append(message)
                    del self._backlog[:-500]
                    await socket.send(msgspec.msgpack.encode(message))
            await asyncio.sleep(INTERVAL)
        with contextlib.suppress(WebSocketException):
            self.simulated.seq += 1
            await socket.send(msgspec.msgpack.encode(Goodbye(self.simulated.seq)))

    def _due(self) -> list[object]:
        """Snapshots up to now, one per interval, so that a simulated past is published too."""
        due: list[object] = []
        now = time.time()
        while self._played + INTERVAL <= now:
            self._played += INTERVAL
            self.simulated.advance(self._played)
            due.append(self.simulated.snapshot())
            if events := self.simulated.take_events():
                self.simulated.seq += 1
                due.append(Events(self.simulated.seq, events))
            if len(due) > 400:
                break
        return due

    async def _listen(self, socket: ClientConnection) -> None:
        while True:
            message = decode(await socket.recv(decode=False))
            if isinstance(message, Command) and self.obeying:
                await self._obey(socket, message)

    async def _obey(self, socket: ClientConnection, command: Command) -> None:
        delivered = Outcome(command=command.id, state="delivered", at=time.time())
        await socket.send(msgspec.msgpack.encode(delivered))
        await asyncio.sleep(0.05)
        if self.refusing:
            outcome = Outcome(command=command.id, state="rejected", at=time.time(), reason=self.refusing)
        else:
            outcome = self.simulated.apply(command)
        await socket.send(msgspec.msgpack.encode(outcome))

    # The rest is called through `Fleet.call`, in the fleet's own thread.

    def silence(self, silent: bool) -> None:
        """Stay connected and say nothing, or speak again."""
        self._silent = silent
        if not silent:
            self._played = max(self._played, time.time() - INTERVAL)

    def leave(self) -> None:
        """End in an orderly way, with a goodbye."""
        self._leaving = True

    def vanish(self) -> None:
        """End as a killed process does: the connection breaks and nothing follows."""
        self._leaving = True
        if self._socket is not None:
            self._socket.transport.abort()


class Fleet:
    """Publishers in a thread of their own."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, scenario: Scenario, past: float = 0.0) -> Publisher:
        publisher = Publisher(self._url, self._token, scenario, past)

        def start() -> None:
            self._tasks.append(self._loop.create_task(publisher.run()))

        self.call(start)
        return publisher

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


GALLERY: tuple[tuple[Scenario, float], ...] = (
    (Scenario(slow_every=60), 120.0),
    (Scenario(name="val", workers=1, fetch=15, step=22, length=400), 60.0),
    (Scenario(run="workers-limit", fetch=140, step=9), 120.0),
    (Scenario(run="sixteen", workers=16, fetch=280, step=12, slow_every=700, slow=1500, length=9000), 120.0),
    (Scenario(run="slow-step", step=180), 90.0),
    (Scenario(run="pin-bound", step=2, pin=18, fetch=20), 90.0),
    (Scenario(run="stream", style="iterable", workers=3), 60.0),
    *(
        (Scenario(run="llama", rank=r, world_size=12, fetch=150 if r == 7 else 40, step=12, seed=r), 6.0)
        for r in range(12)
    ),
)
"""A loader of every kind, to look at: `python -m tests.browser.publisher URL TOKEN`."""


def main() -> None:
    fleet = Fleet(sys.argv[1], sys.argv[2])
    for scenario, past in GALLERY:
        fleet.add(scenario, past)
    failing = fleet.add(Scenario(run="failing", fetch=50), 30.0)
    paused = fleet.add(Scenario(run="paused", workers=2), 30.0)
    done = fleet.add(Scenario(run="done", workers=2), 30.0)
    lost = fleet.add(Scenario(run="killed", workers=2), 30.0)
    time.sleep(2)
    fleet.call(failing.simulated.kill, 2)
    time.sleep(1)
    fleet.call(failing.simulated.kill, 1)
    time.sleep(1)
    fleet.call(failing.simulated.fail, "OSError in worker 1, batch 977, sample 91723: truncated image")
    fleet.call(paused.simulated.apply, Command("", Pause()))
    fleet.call(done.leave)
    fleet.call(lost.vanish)
    threading.Event().wait()


if __name__ == "__main__":
    main()
