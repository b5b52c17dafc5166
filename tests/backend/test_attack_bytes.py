"""Publishers who send too much. Each test says how many bytes the backend may take for it, in memory or on the disk."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from penstock.protocol import Ack, EpochEvent, Event, Events
from penstock_dashboard.store.sqlite import FILE_NAME
from penstock_dashboard.store.sqlite.schema import MIGRATIONS
from websockets.exceptions import ConnectionClosed

from tests.backend.attacks import MB, Peak, disk, frame, hung_up, large_events, large_snapshot, push, websocket
from tests.backend.harness import Dashboard, FakeLoader, dashboard, decode, until
from tests.patience import PATIENCE

MOST = 10 * MB
ASKED = ("--max-size", "10M")


def flood(server: Dashboard, rank: int, total: int) -> None:
    """Send events for as long as the connection lasts, up to so many bytes."""
    with contextlib.suppress(ConnectionClosed, OSError), server.loader("flood", rank=rank, token="publisher") as loader:
        for _ in range(total // (900 << 10)):
            loader.send(large_events(loader.seq, 900 << 10))
            loader.seq += 1


@contextlib.contextmanager
def flooding(server: Dashboard, connections: int, total: int) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=flood, args=(server, rank, total), daemon=True) for rank in range(connections)]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(PATIENCE)


def test_a_flood_keeps_to_the_size_asked_for_and_pushes_out_nobody_else(folder: Path) -> None:
    """Ten megabytes are asked for; two connections send 28."""
    data = folder / "data"
    with dashboard(folder, "--data", str(data), *ASKED) as server, server.loader("honest") as honest:
        for number in range(50):
            honest.events(EpochEvent(time.time(), "started", number))
        honest.acknowledged(49)
        with Peak(data).watching() as peak, flooding(server, 2, 14 * MB) as threads:
            number = 50
            while any(thread.is_alive() for thread in threads):
                honest.acknowledged(honest.events(EpochEvent(time.time(), "started", number)))
                number += 1
        assert peak.bytes < 1.1 * MOST, "the write-ahead log included"
        assert server.memory < 300 * MB
        stored = server.get("/api/loaders/honest:0:train/events", limit=10_000)
        assert [event["event"]["epoch"] for event in stored] == list(range(number)), "all that was acknowledged"
        assert server.get("/api/status")["dropped_bytes"] > 0, "the flood's own"
    with contextlib.closing(sqlite3.connect(data / FILE_NAME)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_messages_that_grow_when_they_are_written_out_push_out_nobody_else(folder: Path) -> None:
    """A control character is one byte in MessagePack and six in JSON."""
    data = folder / "data"
    with dashboard(folder, "--data", str(data), *ASKED) as server, server.loader("honest") as honest:
        for number in range(50):
            honest.events(EpochEvent(time.time(), "failed", number, reason="x" * 10_000))
        honest.acknowledged(49)
        swelling: list[Event] = [EpochEvent(1.0, "failed", n, reason="\0" * 16_000) for n in range(50)]
        with Peak(data).watching() as peak:
            for rank in range(6):
                with contextlib.suppress(ConnectionClosed), server.loader("swell", rank=rank, token="publisher") as one:
                    for seq in range(6):
                        one.send(Events(seq, swelling[: 50 if seq % 2 else 12]))
                    one.acknowledged(4)
        assert peak.bytes < 1.1 * MOST
        stored = server.get("/api/loaders/honest:0:train/events", limit=10_000)
        assert [event["event"]["epoch"] for event in stored] == list(range(50))


def test_a_disk_that_takes_nothing_is_felt_by_who_sends(folder: Path) -> None:
    """Somebody locks the database. What waits for it is bounded, nothing is acknowledged, then it is said why."""
    data = folder / "data"
    limits = {"patience": 2.0}
    with dashboard(folder, "--data", str(data), *ASKED, limits=limits) as server, server.loader("flood") as loader:
        loader.snapshot()
        loader.acknowledged(0)
        before = server.memory_now
        with contextlib.closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            sender = threading.Thread(target=flood_with, args=(loader, 40 * MB), daemon=True)
            sender.start()
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    message = decode(loader.socket.recv(timeout=PATIENCE))
                    assert not isinstance(message, Ack), "nothing was stored"
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013, "come back later"
            sender.join(PATIENCE)
            assert server.memory - before < 40 * MB
            lock.execute("ROLLBACK")
        health = until(lambda: health if (health := server.get("/readyz"))["status"] == "refusing" else None)
        assert "could be stored" in health["warning"]
        with server.viewer() as viewer:
            assert "could be stored" in viewer.session.warning, "and so says the page"


def flood_with(loader: FakeLoader, total: int) -> None:
    with contextlib.suppress(ConnectionClosed, OSError):
        for _ in range(total // (900 << 10)):
            loader.send(large_events(loader.seq, 900 << 10))
            loader.seq += 1


def test_a_reader_who_holds_the_log_back_does_not_make_it_grow(folder: Path) -> None:
    """A copy is being made of the database: its write-ahead log cannot be emptied meanwhile."""
    data = folder / "data"
    limits = {"patience": 1.0}
    with dashboard(folder, "--data", str(data), *ASKED, limits=limits) as server, server.loader("held") as loader:
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 0)))
        with contextlib.closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            with Peak(data).watching() as peak, flooding(server, 1, 14 * MB):
                pass
            assert peak.bytes < 1.1 * MOST
            reader.execute("ROLLBACK")


def make_old_database(path: Path, size: int) -> None:
    """As the first version left it, by somebody who did not ask for freed pages to be given back."""
    path.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(MIGRATIONS[0] + "; PRAGMA user_version = 1;")
        database.execute("BEGIN")
        body = b'{"kind":"epoch","at":1.0,"what":"started","epoch":1,"reason":"' + b"x" * 8000 + b'"}'
        database.executemany(
            "INSERT INTO events (loader, at, kind, body) VALUES (1, ?, 'epoch', ?)",
            [(time.time() - size + n, body) for n in range(size // len(body))],
        )
        database.execute("COMMIT")


def test_a_file_that_is_too_large_gives_its_pages_back(folder: Path) -> None:
    data = folder / "data"
    make_old_database(data / FILE_NAME, 40 * MB)
    assert disk(data) > 40 * MB
    with dashboard(folder, "--data", str(data), *ASKED) as server:
        until(lambda: disk(data) < 1.1 * MOST, "the file to shrink")
        assert server.get("/readyz")["status"] == "ok"


def test_loaders_that_are_gone_leave_little_behind(folder: Path) -> None:
    """The last snapshot of each is large, and it is kept as it came, up to a sum."""
    with dashboard(folder, "--data", str(folder / "data")) as server:
        before = server.memory_now
        body = msgspec.msgpack.encode(large_snapshot(0))
        assert len(body) > 350_000
        for rank in range(250):
            with server.loader("gone", rank=rank, token="publisher") as loader:
                loader.send(body)
            if rank % 10 == 9:  # those that are not gone yet may take more
                until(lambda: server.get("/api/status")["publishers"] == 0)
        assert server.memory - before < 150 * MB
        assert len(server.get("/api/loaders")) == 250


def test_a_clock_that_stands_still_costs_no_memory(folder: Path) -> None:
    limits = {"message_rate": 1e9, "message_burst": 1e9, "byte_rate": 1e12, "byte_burst": 1e12}
    size = ("--data", str(folder / "data"), "--max-size", "8M")
    with dashboard(folder, *size, limits=limits) as server, server.loader("still") as loader:

        def run(messages: int) -> int:
            for _ in range(messages):
                loader.snapshot(at=1e9, workers=0)
            loader.acknowledged(loader.seq - 1)
            return server.memory_now

        before = run(8_000)
        assert run(30_000) - before < 10 * MB


def test_a_message_in_countless_fragments_is_cut_short(folder: Path) -> None:
    with dashboard(folder, "--data", ":memory:") as server:
        client = websocket(server, "/ws/live", "viewer")
        client.sendall(frame(1, b"", fin=False))
        push(client, frame(0, b"", fin=False) * 1000, 20)
        until(lambda: hung_up(client))
        client.close()
        assert server.get("/healthz")["status"] == "ok"
