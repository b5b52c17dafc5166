from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from penstock.protocol import Identity
from penstock.telemetry import backoff
from penstock.telemetry.address import Address
from penstock.telemetry.publisher import Publisher
from penstock.telemetry.source import Source

from tests.loader.telemetry.misbehaviours import Behaviour
from tests.loader.telemetry.servers import TOKEN, GoodServer, RawServer

Publish = Callable[..., Publisher]
Bad = Callable[[Behaviour], RawServer]


@pytest.fixture(autouse=True)
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's user or of the launcher is seen or touched; attempts follow each other fast."""
    for variable in ("PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_RUN", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(backoff, "FIRST", 0.01)
    monkeypatch.setattr(backoff, "MOST", 0.05)


@pytest.fixture
def server() -> Iterator[GoodServer]:
    running = GoodServer()
    yield running
    running.stop()


@pytest.fixture
def publish() -> Iterator[Publish]:
    """Starts publishers and ends them with the test."""
    started: list[Publisher] = []

    def start(source: Source, url: str, interval: float = 0.02, *, token: str = TOKEN) -> Publisher:
        number = len(started)
        identity = Identity("run", source.name, host="here", pid=1, incarnation=f"incarnation {number}")
        publisher = Publisher(source, Address(url, token), interval, identity=identity)
        publisher.start()
        started.append(publisher)
        return publisher

    yield start
    for publisher in started:
        publisher.close(flush=0.1)


@pytest.fixture
def bad() -> Iterator[Bad]:
    servers: list[RawServer] = []

    def start(behave: Behaviour) -> RawServer:
        servers.append(RawServer(behave))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
