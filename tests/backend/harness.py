"""Real servers, loaders and viewers for the tests: real sockets, an owner for every thread and process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from penstock import protocol
from penstock.protocol import Config, Events, Hello, Identity, Queues, Snapshot, Times, Worker
from penstock.telemetry import commands as in_loader
from penstock_dashboard.app import create_app
from penstock_dashboard.bus.opening import open_bus
from penstock_dashboard.core import Backend
from penstock_dashboard.ports import listen
from penstock_dashboard.security.tokens import Keyring, Token, TokenFile, save
from penstock_dashboard.server import make_server
from penstock_dashboard.settings import Settings, Timing
from websockets.sync.client import ClientConnection, connect

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]

TOKENS = TokenFile(
    key="the key of the tests",
    tokens=(
        Token("local", "token-for-everything", ("publish", "view", "control")),
        Token("viewer", "token-to-view", ("view",)),
        Token("publisher", "token-to-publish", ("publish",)),
        Token("operator", "token-to-control", ("control",)),
    ),
)
SECRETS = {token.name: token.token for token in TOKENS.tokens}

BRISK = Timing(commit=0.05, acknowledge=0.05, overview=0.1, lost=3600.0, reconnect=600.0, outcome=600.0)
"""Tests do not wait for batches to fill, and nothing is given up because the machine is busy."""

T = TypeVar("T")
M = TypeVar("M")


def until(probe: Callable[[], T | None], what: str = "") -> T:
    """Ask again and again until there is an answer."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what or probe}")


def bearer(name: str = "local") -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[name]}"}


class Address:
    """Where a server is, and clients for it."""

    def __init__(self, port: int, secrets: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.secrets = secrets

    def http(self, name: str | None = "local", **more: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.secrets[name]}"} if name else {}
        return httpx.Client(base_url=self.url, headers={**headers, **more.pop("headers", {})}, timeout=PATIENCE, **more)

    def get(self, path: str, **parameters: Any) -> Any:
        with self.http() as client:
            answer = client.get(path, params=parameters)
            answer.raise_for_status()
            return answer.json()

    def websocket(self, path: str, name: str | None = "local", **more: Any) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self.secrets[name]}"} if name else {}
        headers.update(more.pop("headers", {}))
        # `connect` gives a connection, or in later versions of websockets something that gives one on entry.
        connection: ClientConnection = connect(
            f"ws://127.0.0.1:{self.port}{path}",
            additional_headers=headers,
            max_size=1 << 24,
            open_timeout=PATIENCE,
            close_timeout=1.0,
            compression=None,
            proxy=None,
            **more,
        ).__enter__()
        return connection

    def loader(self, run: str = "run", name: str = "train", rank: int = 0, **more: Any) -> FakeLoader:
        return FakeLoader(self, run, name, rank, **more)

    def viewer(self, name: str = "local") -> FakeViewer:
        return FakeViewer(self.websocket("/ws/live", name))


class Running(Address):
    """A server in a thread of this process, whose parts can be looked at."""

    def __init__(self, port: int, backend: Backend) -> None:
        super().__init__(port, SECRETS)
        self.backend = backend

    def call(self, work: Callable[[], None]) -> None:
        """Run something on the server's event loop."""
        loop = self.backend.store.loop
        assert loop is not None
        loop.call_soon_threadsafe(work)


@contextlib.contextmanager
def serving(settings: Settings, folder: Path) -> Iterator[Running]:
    """The whole backend on a real socket, in a thread that ends with the block."""
    path = folder / "tokens.json"
    save(path, TOKENS)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    settings = msgspec.structs.replace(settings, port=port, token_file=path)
    keyring = Keyring(path)
    backend = Backend(settings, open_bus(settings, keyring.key))
    server = make_server(create_app(settings, keyring, backend), settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, "the server's start")
        yield Running(port, backend)
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"


class Dashboard(Address):
    """`penstock dashboard` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], link: str, secrets: dict[str, str]) -> None:
        self.link = link
        base = link.partition("/#")[0]
        super().__init__(int(base.rpartition(":")[2].partition("/")[0]), secrets)
        self.process = process

    @property
    def memory(self) -> int:
        """Bytes of memory that it has taken at the most."""
        return self._status("VmHWM")

    @property
    def memory_now(self) -> int:
        return self._status("VmRSS")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
        return int(value) << 10

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def environment(folder: Path) -> dict[str, str]:
    """A home of its own for a dashboard."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    return {
        **kept,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "HOME": str(folder),
    }


def die_with_parent() -> None:
    """Called in a child: the kernel ends it when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


WITH_OTHER_SETTINGS = """
import json, sys
import msgspec
from penstock_dashboard import dashboard
from penstock_dashboard.cli import main
from penstock_dashboard.settings import Limits, Timing
given = json.loads(sys.argv.pop(1))
other = {
    "limits": msgspec.structs.replace(Limits(), **given["limits"]),
    "timing": msgspec.structs.replace(Timing(), **given["timing"]),
}
plain = dashboard.settings_from
dashboard.settings_from = lambda arguments: msgspec.structs.replace(plain(arguments), **other)
sys.exit(main())
"""
"""The same command with other limits or times, which people cannot set: so that a test need not wait for, or send, as
much, and nothing is given up because the machine is busy."""


def spawn(
    folder: Path,
    *arguments: str,
    before: Callable[[], None] = lambda: None,
    limits: dict[str, float] | None = None,
    timing: dict[str, float] | None = None,
    **more: str,
) -> subprocess.Popen[str]:
    def prepare() -> None:
        die_with_parent()
        before()

    command = ["-m", "penstock_dashboard"]
    if limits or timing:
        command = ["-c", WITH_OTHER_SETTINGS, json.dumps({"limits": limits or {}, "timing": timing or {}})]
    return subprocess.Popen(
        [sys.executable, *command, "dashboard", *arguments],
        cwd=ROOT,
        env={**environment(folder), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,  # noqa: PLW1509  the tests that start processes have no threads of their own
    )


@contextlib.contextmanager
def dashboard(
    folder: Path,
    *arguments: str,
    before: Callable[[], None] = lambda: None,
    limits: dict[str, float] | None = None,
    timing: dict[str, float] | None = None,
    **more: str,
) -> Iterator[Dashboard]:
    path = folder / "tokens.json"
    if not path.exists():
        save(path, TOKENS)
    given = ("--port", "0", "--token-file", str(path), *arguments)
    process = spawn(folder, *given, before=before, limits=limits, timing=timing, **more)
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert " is at " in line, line + process.stderr.read()
        yield Dashboard(process, line.strip().rpartition(" ")[2], SECRETS)
    finally:
        process.kill()
        process.communicate()


# -------------------------------------------------------------------------------------------------- loaders


def make_hello(run: str = "run", name: str = "train", rank: int = 0, **more: Any) -> Hello:
    incarnation = more.pop("incarnation", "first")
    config = more.pop("config", Config(num_workers=2, max_workers=64))
    return Hello(
        protocol.PROTOCOL,
        Identity(run, name, rank, host="here", pid=1, incarnation=incarnation),
        config,
        **{"started": 1.0, "versions": {"penstock": "0.1.0"}, **more},
    )


def make_snapshot(seq: int, at: float | None = None, workers: int = 2, **more: Any) -> Snapshot:
    """A snapshot in which every number grows with `seq` as in a run at 10 batches/s and 5 snapshots/s."""
    us = seq * 200_000
    given: dict[str, Any] = {
        "state": "running",
        "batches": 2 * seq,
        "samples": 128 * seq,
        "bytes": 1_000_000 * seq,
        "batch": 2 * seq,
        "length": 10_000,
        "target": workers,
        "queues": Queues(index=4, in_flight=8, window=16, data=3),
        "times": Times(compute_us=us // 2, starvation_us=us // 2),
        "workers": [
            Worker(n, 1000 + n, "fetching", batches=seq, fetch_us=us // 2, collate_us=us // 4, rss=100 << 20)
            for n in range(workers)
        ],
    }
    return Snapshot(seq, time.time() if at is None else at, **{**given, **more})


def decode(data: bytes | str) -> protocol.ToLoader | protocol.Command:
    assert isinstance(data, bytes), "the backend speaks MessagePack to loaders"
    message = in_loader.decode(data)
    assert message is not None
    return message


class FakeLoader:
    """Speaks for a training process, correctly unless told otherwise."""

    def __init__(
        self,
        address: Address,
        run: str,
        name: str,
        rank: int,
        *,
        token: str = "local",
        first_seq: int = 0,
        **hello: Any,
    ) -> None:
        self.socket = address.websocket("/ws/publish", token)
        self.id = protocol.loader_id(run, rank, name)
        self.seq = first_seq
        self.received: list[protocol.ToLoader | protocol.Command] = []
        self.send(make_hello(run, name, rank, **hello))
        self.welcome = self.expect(protocol.Welcome)

    def __enter__(self) -> FakeLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, bytes | str) else msgspec.msgpack.encode(message))

    def snapshot(self, **more: Any) -> Snapshot:
        snapshot = make_snapshot(self.seq, **more)
        self.seq += 1
        self.send(snapshot)
        return snapshot

    def events(self, *events: protocol.Event) -> int:
        self.send(Events(self.seq, list(events)))
        self.seq += 1
        return self.seq - 1

    def goodbye(self) -> int:
        self.send(protocol.Goodbye(self.seq, "done"))
        self.seq += 1
        return self.seq - 1

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; others are put aside."""
        while True:
            message = decode(self.socket.recv(timeout=PATIENCE))
            if isinstance(message, kind):
                return message
            self.received.append(message)

    def acknowledged(self, seq: int) -> None:
        """Wait until everything up to this message is stored."""
        while self.expect(protocol.Ack).seq < seq:
            pass

    def outcome(self, command: protocol.Command, state: Any, **more: Any) -> None:
        self.send(protocol.Outcome(command.id, state, time.time(), **more))


class FakeViewer:
    """Speaks for a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session = self.expect(protocol.Session)
        self.alerts = self.expect(protocol.Alerts)

    def __enter__(self) -> FakeViewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, bytes | str) else msgspec.json.encode(message).decode())

    def subscribe(self, *loaders: str, overview: bool = False, after: dict[str, int] | None = None) -> None:
        self.send(protocol.Subscribe(overview, list(loaders), after or {}))

    def next(self, timeout: float = PATIENCE) -> protocol.ToViewer:
        message: protocol.ToViewer = msgspec.json.decode(self.socket.recv(timeout=timeout), type=protocol.ToViewer)
        return message

    def expect(self, kind: type[M], accept: Callable[[M], bool] = lambda _: True) -> M:
        while True:
            message = self.next()
            if isinstance(message, kind) and accept(message):
                return message
