"""Replicas that are killed while loaders publish: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock.protocol import Identity, loader_id
from penstock.telemetry.address import resolve
from penstock.telemetry.publisher import Publisher
from penstock_dashboard.settings import Retention
from penstock_dashboard.store import EventsAsked
from penstock_dashboard.store.samples import from_rows

from tests.backend.harness import SECRETS, Dashboard, dashboard, until
from tests.backend.servers import PostgresServer, unused_port
from tests.loader.telemetry.sources import CountingSource
from tests.patience import PATIENCE

pytest.importorskip("psycopg")

from penstock_dashboard.store.postgres import Postgres

SOAK = float(os.environ.get("PENSTOCK_KILLS", "0"))
"""A replica is killed every 5 s, for so many seconds; 0: a few are, one after the other."""
KILLS = int(SOAK // 5) or 3
LOADERS = 4


class Talking:
    """The real publisher of a loader, which has all addresses."""

    def __init__(self, rank: int, url: str) -> None:
        self.source = CountingSource()
        self.id = loader_id("kills", rank, "train")
        self.kinds: list[str] = []
        """Of all messages, in order."""
        address = resolve(url)
        assert address is not None
        identity = Identity("kills", "train", rank, host="here", pid=1, incarnation="first")
        self.publisher = Publisher(self.source, address, 0.02, identity=identity)
        self.outbox = self.publisher._outbox
        self._add = self.outbox.add
        self.outbox.add = self._count  # type: ignore[method-assign]
        self.publisher.start()

    def _count(self, message: bytes) -> int:
        self.kinds.append(msgspec.msgpack.decode(message)["type"])
        return self._add(message)


class Replicas:
    """Two dashboards on one store, each with a port that it keeps when it is killed and started again."""

    def __init__(self, folder: Path, store: str) -> None:
        self.ports = [unused_port(), unused_port()]
        self.url = ",".join(f"http://127.0.0.1:{port}#token={SECRETS['local']}" for port in self.ports)
        self._folder = folder
        self._store = store
        self._owned: list[contextlib.ExitStack] = []
        self._running: list[Dashboard] = []

    def __enter__(self) -> Replicas:
        for port in self.ports:
            self._owned.append(contextlib.ExitStack())
            self._running.append(self._start(port))
        return self

    def __exit__(self, *_: object) -> None:
        for owned in self._owned:
            owned.close()

    def _start(self, port: int) -> Dashboard:
        options = ("--port", str(port), "--no-discovery", "--store", self._store)
        return self._owned[self.ports.index(port)].enter_context(dashboard(self._folder, *options))

    def kill(self, place: int) -> None:
        self._running[place].kill()

    def revive(self, place: int) -> None:
        self._owned[place].close()
        self._running[place] = self._start(self.ports[place])


def stored_samples(database: Postgres, key: int) -> list[float]:
    """When each sample was taken."""
    connection: Any = database._connected()
    recent = connection.execute("SELECT at FROM recent WHERE loader = %s", (key,)).fetchall()
    chunks = connection.execute("SELECT rows FROM chunks WHERE loader = %s AND tier = 0", (key,)).fetchall()
    return [at for (at,) in recent] + [bucket.at for (rows,) in chunks for bucket in from_rows(rows)]


@pytest.mark.timeout(300 + 10 * SOAK)
def test_replicas_killed_while_loaders_publish_lose_nothing_and_store_nothing_twice(
    folder: Path, postgres: PostgresServer
) -> None:
    store = postgres.database()
    dice = random.Random(11)
    with Replicas(folder, store) as replicas:
        talking = [Talking(rank, replicas.url) for rank in range(LOADERS)]
        for victim in itertools.islice(itertools.cycle((0, 1)), KILLS):
            acked = [one.outbox.first for one in talking]

            def go_on(acked: list[int] = acked) -> bool:
                for one in talking:
                    one.source.happen()
                    one.publisher.wake()
                return all(one.outbox.first > before for one, before in zip(talking, acked, strict=True))

            until(go_on, "all loaders to be acknowledged something new")
            end = time.monotonic() + (5.0 if SOAK else dice.random() * 0.3)
            while time.monotonic() < end:
                go_on()
                time.sleep(0.02)
            replicas.kill(victim)
            go_on()
            replicas.revive(victim)
        for one in talking:
            one.publisher.close(PATIENCE)
            assert not one.publisher._outbox._kept, "the goodbye is acknowledged, and all before it"
    database = Postgres(store, Retention())
    keys = {record.id: record.key for record, _ in database.known(0).loaders}
    for one in talking:
        assert one.outbox.dropped == 0
        events = database.events(EventsAsked(keys[one.id], one.id, limit=1_000_000))
        epochs = [msgspec.json.decode(record.body)["epoch"] for record in events]
        assert epochs == list(range(one.source.happened)), "every event once, in order"
        moments = stored_samples(database, keys[one.id])
        assert len(moments) == len(set(moments)) == one.kinds.count("snapshot"), "every snapshot once"
    database.close()
