"""What is remembered, and what happens to it when the worst happens."""

from __future__ import annotations

import contextlib
import random
import resource
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.protocol import Ack, EpochEvent, Happened, Rates, Session, Spans
from penstock_dashboard.settings import Retention, Settings
from penstock_dashboard.store.samples import Sample, pack
from penstock_dashboard.store.sqlite import FILE_NAME, compacting
from penstock_dashboard.store.sqlite.schema import MIGRATIONS, open_database
from websockets.exceptions import ConnectionClosed

from tests.backend.harness import BRISK, Address, Dashboard, FakeLoader, dashboard, decode, serving


def epochs(server: Address, identifier: str) -> list[int]:
    return [stored["event"]["epoch"] for stored in server.get(f"/api/loaders/{identifier}/events", limit=10_000)]


def acknowledgements(loader: FakeLoader, timeout: float) -> Iterator[int]:
    """What is acknowledged until nothing comes for a while or the connection ends."""
    with contextlib.suppress(TimeoutError, ConnectionClosed, OSError):
        while True:
            message = decode(loader.socket.recv(timeout=timeout))
            if isinstance(message, Ack):
                yield message.seq


def publish_until_death(server: Dashboard, loader: FakeLoader, seconds: float) -> tuple[set[int], int]:
    """Send snapshots and events and kill the backend meanwhile, so many seconds after it has acknowledged something;
    returns the events sent, and the last ack.
    """
    sent: set[int] = set()
    acked, known = -1, loader.seq - 1
    killer = threading.Timer(seconds, server.kill)
    try:
        while True:
            if acked > known and not killer.ident:
                killer.start()
            for _ in range(10):
                loader.snapshot()
                sent.add(loader.seq)
                loader.events(EpochEvent(time.time(), "started", loader.seq))
            acked = max(acked, *acknowledgements(loader, 0), -1)
            time.sleep(0.002)
    except (ConnectionClosed, OSError):
        killer.join()
        return sent, max(acked, *acknowledgements(loader, 1.0), -1)


def test_kill_in_mid_write_loses_nothing_that_was_acknowledged(folder: Path) -> None:
    """What was acknowledged is there after each of two deaths; what is sent anew does not come twice."""
    dice = random.Random(7)
    sent: set[int] = set()
    acked = -1
    for life in range(3):
        with dashboard(folder, "--data", str(folder / "data")) as server, server.loader() as loader:
            last = loader.welcome.last_seq
            assert last >= acked, "something that was acknowledged is gone"
            sent = {seq for seq in sent if seq <= last}
            assert epochs(server, loader.id) == sorted(sent), "events up to the last message, each once"
            with contextlib.closing(sqlite3.connect(folder / "data" / FILE_NAME)) as database:
                assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            if life < 2:
                loader.seq = last + 1  # as a real loader: on with the message after the last that is known
                more, acked = publish_until_death(server, loader, dice.random())
                sent |= more
                assert acked > last, "nothing was acknowledged in this life"


def test_a_restart_remembers_loaders_history_events_and_commands(folder: Path) -> None:
    settings = Settings(data=folder / "data", timing=BRISK)
    with serving(settings, folder) as server, server.loader() as loader, server.http() as client:
        start = time.time()
        for number in range(50):
            loader.snapshot(at=start - 10 + number * 0.2)
        loader.events(EpochEvent(start, "started", 5))
        client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"}).raise_for_status()
        loader.acknowledged(loader.goodbye())
    with serving(settings, folder) as again:
        detail = again.get("/api/loaders/run:0:train")
        assert detail["row"]["presence"] == "finished"
        assert detail["snapshot"]["seq"] == 49
        history = again.get("/api/loaders/run:0:train/history", points=1000)
        assert len(history["at"]) == 50
        assert epochs(again, "run:0:train") == [5]
        (command,) = again.get("/api/loaders/run:0:train/commands")
        assert command["action"] == "pause"
        with again.loader(incarnation="first", first_seq=0) as back:
            assert back.welcome.last_seq == 51


def test_files_are_private(folder: Path) -> None:
    settings = Settings(data=folder / "data", timing=BRISK)
    with serving(settings, folder), contextlib.suppress(FileNotFoundError):
        for path in (folder / "data").iterdir():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def check_degraded(server: Address) -> None:
    """It says so everywhere, and works."""
    assert server.get("/readyz")["status"] == "degraded"
    assert "memory" in server.get("/api/status")["warning"]
    with server.viewer() as viewer, server.loader("degraded") as loader:
        assert "memory" in viewer.session.warning
        viewer.subscribe(loader.id)
        loader.snapshot()
        loader.events(EpochEvent(time.time(), "started", 1))
        viewer.expect(Happened)
        assert loader.received == [] and not list(acknowledgements(loader, 0.2)), "what may be lost is not acknowledged"
        assert epochs(server, loader.id) == [1]
        assert len(server.get(f"/api/loaders/{loader.id}/history")["at"]) == 1


@pytest.mark.parametrize("content", [b"this is no database" * 1000, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_damaged_file_degrades_to_memory_and_is_left_alone(folder: Path, content: bytes) -> None:
    path = folder / "data" / FILE_NAME
    path.parent.mkdir()
    path.write_bytes(content)
    with serving(Settings(data=folder / "data", timing=BRISK), folder) as server:
        check_degraded(server)
    assert path.read_bytes() == content


def test_a_file_of_a_later_version_degrades_to_memory_and_is_left_alone(folder: Path) -> None:
    path = folder / "data" / FILE_NAME
    connection = open_database(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with serving(Settings(data=folder / "data", timing=BRISK), folder) as server:
        check_degraded(server)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    connection.close()


def test_a_full_disk_degrades_to_memory_and_what_was_acknowledged_is_there_afterwards(folder: Path) -> None:
    """The limit on file size stands in for the disk: from some write on, writing fails."""

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    where = ("--data", str(folder / "data"))
    with (
        dashboard(folder, *where, before=small_disk) as server,
        server.viewer() as viewer,
        server.loader("filling") as loader,
    ):
        assert viewer.session.warning == ""
        acked, written = -1, 0
        while not server.get("/api/status")["warning"]:
            for _ in range(5):
                loader.events(EpochEvent(time.time(), "failed", loader.seq, reason="x" * 8000))
            acked = max(acked, *acknowledgements(loader, 0.3), -1)
            written += 1
            assert written < 200, "the disk never became full"
        assert acked >= 0
        assert "memory" in viewer.expect(Session).warning
        check_degraded(server)
        acked = max(acked, *acknowledgements(loader, 0.3), -1)
        sent = loader.seq
    with dashboard(folder, *where) as mended, mended.loader("filling") as back:
        assert acked <= back.welcome.last_seq < sent - 1, "what was acknowledged, and not what was kept in memory"
        assert epochs(mended, back.id) == list(range(back.welcome.last_seq + 1))


def test_after_a_clean_stop_the_database_is_one_file(folder: Path) -> None:
    with dashboard(folder, "--data", str(folder / "data")) as server, server.loader() as loader, server.viewer():
        loader.snapshot()
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 1)))
        server.get(f"/api/loaders/{loader.id}/history")
        server.get(f"/api/loaders/{loader.id}/events")
        assert server.stop() == 0
    assert [path.name for path in (folder / "data").glob(f"{FILE_NAME}*")] == [FILE_NAME]


def test_an_unwritable_folder_degrades_to_memory(folder: Path) -> None:
    (folder / "data").write_text("a file where the folder should be")
    with serving(Settings(data=folder / "data", timing=BRISK), folder) as server:
        check_degraded(server)


def test_a_database_of_the_first_version_is_brought_up_to_date(folder: Path) -> None:
    path = folder / FILE_NAME
    connection = sqlite3.connect(path)
    connection.executescript(MIGRATIONS[0] + "; PRAGMA user_version = 1;")
    connection.close()
    connection = open_database(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()


def fill(connection: sqlite3.Connection, begin: float, minutes: int, retention: Retention) -> None:
    for minute in range(minutes):
        samples = [Sample(begin + minute * 60 + n, pack(Rates(batches=float(n)))) for n in range(60)]
        connection.execute("BEGIN")
        compacting.compact(connection, {1: samples}, {}, {}, begin + minute * 60 + 60)
        compacting.expire(connection, retention, begin + minute * 60 + 60)
        connection.execute("COMMIT")


def test_each_tier_is_kept_for_its_time(folder: Path) -> None:
    connection = open_database(folder / FILE_NAME)
    retention = Retention(samples=600.0, ten_seconds=1800.0, minutes=3600.0)
    fill(connection, 1e9, 90, retention)
    counts = [
        connection.execute("SELECT count(*) FROM chunks WHERE tier = ?", (tier,)).fetchone()[0] for tier in range(3)
    ]
    assert counts == [11, 31, 61]
    connection.close()


def test_spans_are_stored_like_any_event(folder: Path) -> None:
    with serving(Settings(timing=BRISK), folder) as server, server.loader() as loader:
        loader.acknowledged(loader.events(Spans(time.time(), time.time(), [])))
        (stored,) = server.get(f"/api/loaders/{loader.id}/events", kind="spans")
        assert stored["event"]["spans"] == []
