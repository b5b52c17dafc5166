"""What a loader is promised when it publishes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock.protocol import (
    PROTOCOL,
    Ack,
    Detail,
    EpochEvent,
    Events,
    Refused,
    WorkerEvent,
)
from penstock_dashboard.settings import Limits, Settings, Timing
from penstock_dashboard.store import Claim
from websockets.exceptions import ConnectionClosed

from tests.backend.harness import Running, decode, make_hello, make_snapshot, serving, until
from tests.patience import PATIENCE


def row(server: Running, identifier: str) -> Any:
    return server.get(f"/api/loaders/{identifier}")["row"]


def closing(loader: Any) -> int:
    """Read on until the server closes; the code says why."""
    try:
        while True:
            loader.socket.recv(timeout=PATIENCE)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return closed.rcvd.code


def test_a_new_loader_is_welcomed_and_listed(server: Running) -> None:
    with server.loader("new") as loader:
        assert loader.welcome.protocol == PROTOCOL
        assert loader.welcome.loader == "new:0:train"
        assert loader.welcome.last_seq == -1
        loader.snapshot()
        found = until(lambda: row(server, loader.id) if row(server, loader.id)["workers"] == 2 else None)
        assert found["presence"] == "connected"
        assert found["state"] == "running"


def test_what_is_acknowledged_is_stored(server: Running) -> None:
    with server.loader("acked") as loader:
        seq = loader.events(EpochEvent(time.time(), "started", 0))
        loader.acknowledged(seq)
        (stored,) = server.get(f"/api/loaders/{loader.id}/events")
        assert stored["event"]["kind"] == "epoch"


def test_a_lost_connection_resumes_after_the_last_message_that_came(server: Running) -> None:
    with server.loader("resumed") as loader:
        for epoch in range(3):
            seq = loader.events(EpochEvent(time.time(), "started", epoch))
        loader.acknowledged(seq)
    with server.loader("resumed") as again:
        assert again.welcome.last_seq == 2
        # It repeats a message, as a loader does that never saw the acknowledgement, and goes on.
        again.send(Events(2, [EpochEvent(time.time(), "started", 2)]))
        again.send(Events(3, [EpochEvent(time.time(), "started", 3)]))
        again.acknowledged(3)
    epochs = [stored["event"]["epoch"] for stored in server.get("/api/loaders/resumed:0:train/events")]
    assert epochs == [0, 1, 2, 3]


def test_a_restarted_training_is_the_same_loader_in_a_new_incarnation(server: Running) -> None:
    with server.loader("restarted") as loader:
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 0)))
    with server.loader("restarted", incarnation="second", started=2.0) as again:
        assert again.welcome.last_seq == -1
        again.acknowledged(again.events(EpochEvent(time.time(), "started", 7)))
    epochs = [stored["event"]["epoch"] for stored in server.get("/api/loaders/restarted:0:train/events")]
    assert epochs == [0, 7]
    assert row(server, "restarted:0:train")["identity"]["incarnation"] == "second"
    assert len([r for r in server.get("/api/loaders") if r["identity"]["run"] == "restarted"]) == 1


def test_of_two_processes_with_one_name_the_later_started_wins(server: Running) -> None:
    with (
        server.loader("twice", started=10.0) as first,
        server.loader("twice", started=20.0, incarnation="second"),
        server.websocket("/ws/publish") as third,
    ):
        assert closing(first) == 4409
        third.send(msgspec.msgpack.encode(make_hello("twice", started=5.0, incarnation="third")))
        refused = decode(third.recv(timeout=PATIENCE))
        assert isinstance(refused, Refused)
        assert "another name" in refused.reason


def test_a_loader_that_says_goodbye_is_finished(server: Running) -> None:
    with server.loader("done") as loader:
        loader.snapshot()
        loader.acknowledged(loader.goodbye())
    assert row(server, "done:0:train")["presence"] == "finished"


def test_silence_makes_stale_and_then_lost(folder: Path) -> None:
    timing = Timing(lost=5.0, reconnect=0.5)  # stale: after three seconds, at the pace of what nobody watched
    with serving(Settings(timing=timing), folder) as server, server.viewer() as viewer:

        def becomes(presence: str) -> None:
            viewer.expect(Detail, lambda message: message.detail.row.presence == presence)

        with server.loader("silent", interval_us=10_000) as loader:
            viewer.subscribe(loader.id)
            becomes("stale")
            loader.snapshot()
            becomes("connected")
            becomes("lost")
            loader.snapshot()
            becomes("connected")
        becomes("stale")
        becomes("lost")


BAD: dict[str, Any] = {
    "text": "hello",
    "empty": b"",
    "garbage": b"\xc1\xff\x00" * 10,
    "not UTF-8": msgspec.msgpack.encode({"type": "goodbye", "seq": 1, "reason": "x"}).replace(b"\xa1x", b"\xa1\xff"),
    "a list": msgspec.msgpack.encode([1, 2, 3]),
    "unknown type": msgspec.msgpack.encode({"type": "nonsense"}),
    "a second hello": make_hello("bad"),
    "negative": msgspec.msgpack.encode({"type": "snapshot", "seq": -1, "at": 1.0, "state": "idle"}),
    "huge": msgspec.msgpack.encode({"type": "snapshot", "seq": 2**63, "at": 1.0, "state": "idle"}),
    "not a number": msgspec.msgpack.encode({"type": "snapshot", "seq": 5, "at": float("nan"), "state": "idle"}),
    "infinite": msgspec.msgpack.encode({"type": "snapshot", "seq": 5, "at": float("inf"), "state": "idle"}),
    "wrong state": msgspec.msgpack.encode({"type": "snapshot", "seq": 5, "at": 1.0, "state": "dancing"}),
    "deeply nested": b"\x81\xa1x" * 50_000 + b"\xc0",
    "deep in a list": b"\x82\xa4type\xa6events\xa6events" + b"\x91" * 50_000 + b"\xc0",
    "too many workers": msgspec.msgpack.encode(
        {"type": "snapshot", "seq": 5, "at": 1.0, "state": "idle", "workers": [[1, 1, "idle"]] * 1025}
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_is_refused_with_a_reason_and_the_connection_goes_on(server: Running, name: str) -> None:
    before = server.backend.counters.bad_messages
    with server.loader("bad", incarnation=name, started=time.time()) as loader:
        loader.send(BAD[name])
        assert loader.expect(Refused).reason
        loader.snapshot()
        loader.acknowledged(0)
    assert server.backend.counters.bad_messages == before + 1


def test_three_bad_messages_close_the_connection(server: Running) -> None:
    with server.loader("thrice") as loader:
        for _ in range(3):
            loader.send(b"\xc1")
        assert closing(loader) == 1008


def test_an_oversized_message_closes_the_connection(server: Running) -> None:
    with server.loader("oversized") as loader:
        loader.send(b"\x00" * ((1 << 20) + 1))
        assert closing(loader) == 1009


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (make_snapshot(0), "first message"),
        (b"\xc1", "not a message"),
        (msgspec.structs.replace(make_hello(), protocol=(PROTOCOL[0] + 1, 0)), "major version"),
        (msgspec.msgpack.encode({"type": "hello", "protocol": [9, 1], "who": "knows"}), "major version"),
        (make_hello(run="line\n"), "letters"),
        (make_hello(run="../etc"), "regex"),
        (make_hello(name="x" * 65), "length"),
        (make_hello(versions={str(n): "1" for n in range(100)}), "versions"),
    ],
)
def test_a_bad_hello_is_refused_with_a_reason(server: Running, hello: Any, words: str) -> None:
    with server.websocket("/ws/publish") as socket:
        socket.send(hello if isinstance(hello, bytes) else msgspec.msgpack.encode(hello))
        refused = decode(socket.recv(timeout=PATIENCE))
        assert isinstance(refused, Refused)
        assert words in refused.reason
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=PATIENCE)


def test_a_newer_loader_of_the_same_major_version_is_understood(server: Running) -> None:
    hello = msgspec.to_builtins(make_hello("newer"))
    hello |= {"protocol": [PROTOCOL[0], PROTOCOL[1] + 5], "colour": "blue"}
    known = msgspec.to_builtins(EpochEvent(time.time(), "started", 3))
    with server.websocket("/ws/publish") as socket:
        socket.send(msgspec.msgpack.encode(hello))
        socket.recv(timeout=PATIENCE)
        socket.send(msgspec.msgpack.encode({"type": "applause"}))
        socket.send(
            msgspec.msgpack.encode(
                {
                    "type": "events",
                    "seq": 0,
                    "events": [{"kind": "eclipse", "at": 1.0}, known | {"mood": "good"}],
                }
            )
        )
        assert decode(socket.recv(timeout=PATIENCE)) == Ack(0)
    kinds = [stored["event"]["kind"] for stored in server.get("/api/loaders/newer:0:train/events")]
    assert kinds == ["epoch"]


def test_loaders_per_run_and_token_are_limited(folder: Path) -> None:
    limits = Limits(loaders=20, loaders_per_run=8)
    with serving(Settings(limits=limits), folder) as server, contextlib.ExitStack() as present:
        for rank in range(8):
            present.enter_context(server.loader("crowd", rank=rank))
        with server.websocket("/ws/publish") as socket:
            socket.send(msgspec.msgpack.encode(make_hello("crowd", rank=8)))
            refused = decode(socket.recv(timeout=PATIENCE))
            assert isinstance(refused, Refused) and "limit" in refused.reason
        assert server.get("/readyz")["status"] == "refusing"
        # Beyond the limit of a token, its loaders that have gone make room for those that come.
        for rank in range(30):
            server.loader(f"run{rank}").socket.close()
        rows = server.get("/api/loaders")
        assert len(rows) == limits.of_one_token(20)
        assert "run29:0:train" in {row["id"] for row in rows}


def test_a_flood_under_one_token_pushes_out_only_its_own(folder: Path) -> None:
    limits = Limits(loaders=40, loaders_per_run=10)
    with serving(Settings(limits=limits), folder) as server:
        for rank in range(5):
            server.loader("honest", rank=rank).socket.close()
        for number in range(60):
            run = "honest" if number < 20 else f"flood{number}"
            server.loader(run, name="flood", rank=number, token="publisher").socket.close()
        known = {row["id"] for row in server.get("/api/loaders")}
        assert {f"honest:{rank}:train" for rank in range(5)} <= known
        assert len(known) == 5 + limits.of_one_token(40), "the flood has its share, which is not all"
        with server.loader("honest", rank=99):
            pass


def test_ten_thousand_loaders_leave_the_backend_answering(folder: Path) -> None:
    """In the registry itself, since as many sockets would only test the kernel."""
    with serving(Settings(), folder) as server:
        registry = server.backend.registry
        limit = server.backend.settings.limits.loaders
        loop_done: list[int] = []

        def flood() -> None:
            for number in range(10_000):
                registry.welcome(make_hello(f"run{number % 100}", rank=number), Claim(number + 1, 0, 1, -1))
            loop_done.append(len(registry))

        server.call(flood)
        until(lambda: loop_done)
        assert loop_done[0] <= limit
        assert len(server.get("/api/loaders")) == loop_done[0]


def test_a_dead_worker_is_reported_as_an_event(server: Running) -> None:
    with server.loader("deaths") as loader:
        event = WorkerEvent(time.time(), "died", 1, 4242, exitcode=-9, signal="SIGKILL", batch=17, retried=True)
        loader.acknowledged(loader.events(event))
    (stored,) = server.get("/api/loaders/deaths:0:train/events", kind="worker")
    assert stored["event"]["signal"] == "SIGKILL"
