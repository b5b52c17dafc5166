"""What several replicas on one PostgreSQL may rely on, and what happens when it is gone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.protocol import EpochEvent
from penstock_dashboard.settings import Retention, Settings
from penstock_dashboard.store import Batch, EventRecord
from penstock_dashboard.store.database import Unavailable

from tests.backend.harness import BRISK, serving, until
from tests.backend.servers import PostgresServer, postgres_server
from tests.backend.test_database import bodies, claim, history, message
from tests.patience import PATIENCE

psycopg = pytest.importorskip("psycopg")

from penstock_dashboard.store import postgres as module  # noqa: E402
from penstock_dashboard.store.postgres import Postgres  # noqa: E402
from penstock_dashboard.store.postgres.connecting import connect  # noqa: E402
from penstock_dashboard.store.postgres.writing import set_marks  # noqa: E402


@pytest.fixture
def replicas(postgres: PostgresServer) -> Iterator[tuple[Postgres, Postgres]]:
    url = postgres.database()
    made = Postgres(url, Retention()), Postgres(url, Retention())
    yield made
    for database in made:
        database.close()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_a_loader_that_went_to_another_replica_is_stored_there_only(replicas: tuple[Postgres, Postgres]) -> None:
    here, there = replicas
    first = claim(here)
    assert not here.store(message(first, 0)).void
    second = claim(there)
    assert (second.key, second.last_seq) == (first.key, 0)
    assert here.store(message(first, 1)).void == {first.key}, "it would be there twice"
    assert not there.store(message(second, 1)).void
    assert len(bodies(here, first.key)) == 2
    assert history(here, first.key) == history(there, first.key) == [0.0, 1.0]


def test_a_claim_waits_for_a_batch_that_is_being_stored(postgres: PostgresServer) -> None:
    url = postgres.database()
    here, there, under_way = Postgres(url, Retention()), Postgres(url, Retention()), connect(url)
    first = claim(here)
    with under_way.transaction():
        assert set_marks(under_way, message(first, 7)) == (frozenset(), frozenset())
        thread, claims = in_thread(lambda: claim(there))
        thread.join(0.3)
        assert not claims, "whether message 7 is stored is not known yet"
    thread.join(PATIENCE)
    assert claims[0].last_seq == 7
    for database in (here, there, under_way):
        database.close()


def test_a_batch_whose_fate_is_unknown_is_stored_once_and_reported(
    replicas: tuple[Postgres, Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = replicas
    made = claim(here)
    real, calls = module._store, []

    def lost_while_committing(connection: Any, batch: Batch) -> Batch:
        stored = real(connection, batch)
        calls.append(stored)
        if len(calls) == 1:
            connection.execute("COMMIT")
            raise psycopg.OperationalError("the connection was lost")
        return stored

    monkeypatch.setattr(module, "_store", lost_while_committing)
    stored = here.store(message(made, 0, events=2))
    assert len(calls) == 2
    assert not stored.void and set(stored.marks) == {made.key}, "it is acknowledged"
    assert len(stored.events) == 2 and [e.id for e in stored.events] == [e.id for e in calls[0].events]
    assert len(bodies(here, made.key)) == 2 and history(here, made.key) == [0.0]


def test_replicas_share_the_compaction_and_nothing_is_there_twice(
    replicas: tuple[Postgres, Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = time.time() // 60 * 60
    claims = [claim(replicas[0], f"run:{rank}:train") for rank in range(6)]
    for made in claims:
        replicas[0].store(message(made, 3, at=minute - 30))
    monkeypatch.setattr(time, "time", lambda: minute + 65)
    replicas[0].share = lambda: (0, 2)
    replicas[1].share = lambda: (1, 2)
    left = "SELECT count(*) FROM recent"
    replicas[0].tend()
    assert replicas[0]._connected().execute(left).fetchone() == (3,), "half of them are left to the other"
    replicas[1].share = lambda: (0, 1)  # it has not heard of the other
    replicas[1].tend()
    assert replicas[0]._connected().execute(left).fetchone() == (0,)
    assert [history(replicas[1], made.key) for made in claims] == [[3.0]] * 6


def test_the_oldest_goes_when_there_is_too_much(postgres: PostgresServer) -> None:
    database = Postgres(postgres.database(), Retention(max_bytes=8 << 20))
    made = claim(database)
    for seq in range(12):
        batch = message(made, seq, events=0)
        for _ in range(2):
            body = b'{"seq":%d,"x":"%s"}' % (seq, b"x" * (512 << 10))
            batch.add_event(EventRecord(0, made.key, "run:0:train", time.time(), "epoch", body, made.owner))
        database.store(batch)
        database.tend()
    assert database.dropped > 0
    (size,) = database._connected().execute("SELECT sum(length(body)) FROM events").fetchone() or (0,)
    assert size <= 8 << 20
    assert bodies(database, made.key)[-1].startswith(b'{"seq":11'), "the newest are kept"
    database.close()


def test_without_a_server_nothing_starts_and_no_password_is_told() -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as told:
        Postgres("postgresql://tests:hush@127.0.0.1:1/none", Retention())
    assert "hush" not in str(told.value)


def test_an_outage_is_waited_for_and_what_was_sent_meanwhile_is_stored_once(folder: Path) -> None:
    with postgres_server() as own:
        settings = Settings(store=own.database(), timing=BRISK)
        with serving(settings, folder) as server, server.loader() as loader:
            loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 0)))
            own.stop()
            last = loader.events(EpochEvent(time.time(), "started", 1))
            until(lambda: "cannot be reached" in server.backend.warning)
            with server.http() as client:
                assert client.get(f"/api/loaders/{loader.id}/events").status_code == 503
            own.start()
            loader.acknowledged(last)
            found = server.get(f"/api/loaders/{loader.id}/events")
            assert [stored["event"]["epoch"] for stored in found] == [0, 1]
            until(lambda: not server.backend.warning)
            assert server.get("/readyz")["status"] == "ok"
