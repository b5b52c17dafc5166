"""Replicas that are killed while loaders publish, people look and commands are given: nothing is lost, and nothing is
there twice.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from penstock.protocol import CommandRecord, EpochEvent, Frame, Gap, Happened, Identity, loader_id
from penstock.telemetry.address import resolve
from penstock.telemetry.publisher import Publisher
from penstock_dashboard.settings import Retention
from penstock_dashboard.store import CommandsAsked, EventsAsked
from penstock_dashboard.store.samples import from_rows
from websockets.exceptions import WebSocketException

from tests.backend.harness import SECRETS, Address, Dashboard, dashboard, until
from tests.backend.servers import PostgresServer, RedisServer, unused_port
from tests.loader.telemetry.sources import CountingSource
from tests.patience import PATIENCE

pytest.importorskip("psycopg")
pytest.importorskip("redis")

from penstock_dashboard.store.postgres import Postgres

SOAK = float(os.environ.get("PENSTOCK_KILLS", "0"))
"""A replica is killed every 5 s, for so many seconds; 0: a few are, one after the other."""
LOADERS = 4
VIEWERS = 2
PATIENT = {"lost": 3600.0, "reconnect": 600.0, "outcome": 600.0}
"""Nothing is given up because the machine is busy."""


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


class Watching:
    """A viewer that goes from replica to replica, and says each time what it has seen."""

    def __init__(self, ports: Sequence[int], loaders: Sequence[str]) -> None:
        self.seen: dict[str, list[int]] = {loader: [] for loader in loaders}
        """Loader → the epochs in its events, in the order in which they were shown."""
        self.frames = 0
        self.gaps: list[Gap] = []
        self._last = dict.fromkeys(loaders, 0)
        self._ports = ports
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for port in itertools.cycle(self._ports):
            with contextlib.suppress(OSError, EOFError, WebSocketException):  # it was killed, or is not up yet
                self._watch(Address(port, SECRETS))
            if self._stopping.wait(0.05):
                return

    def _watch(self, address: Address) -> None:
        with address.viewer() as viewer:
            viewer.subscribe(*self.seen, overview=True, after=self._last)
            while not self._stopping.is_set():
                try:
                    message = viewer.next(0.2)
                except TimeoutError:
                    continue
                if isinstance(message, Happened):
                    for stored in message.events:
                        assert isinstance(stored.event, EpochEvent)
                        self.seen[stored.loader].append(stored.event.epoch)
                        self._last[stored.loader] = stored.id
                elif isinstance(message, Gap):
                    self.gaps.append(message)
                elif isinstance(message, Frame):
                    self.frames += 1


class Giving:
    """A person who gives a loader a command at one replica, and again at the next until there is an answer."""

    def __init__(self, ports: Sequence[int], loader: Talking, number: int) -> None:
        self.loader = loader
        self.answers: list[httpx.Response] = []
        self._ports = ports
        self._number = number
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> str:
        """The command's id."""
        self._thread.join(PATIENCE)
        (answer,) = self.answers
        assert answer.status_code == 202, answer.text
        return msgspec.json.decode(answer.content, type=CommandRecord).id

    def _run(self) -> None:
        path, key = f"/api/loaders/{self.loader.id}/commands", {"Idempotency-Key": f"order-{self._number}"}
        body, deadline = {"action": "resize", "workers": self._number + 1}, time.monotonic() + PATIENCE
        for port in itertools.cycle(self._ports):
            with contextlib.suppress(httpx.TransportError), Address(port, SECRETS).http() as client:
                self.answers.append(client.post(path, json=body, headers=key))
            if self.answers or time.monotonic() > deadline:
                return
            time.sleep(0.05)


class Replicas:
    """Two dashboards on one store, each with a port that it keeps when it is killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.ports = [unused_port(), unused_port()]
        self.url = ",".join(f"http://127.0.0.1:{port}#token={SECRETS['local']}" for port in self.ports)
        self._folder = folder
        self._options = options
        self._owned: list[contextlib.ExitStack] = []
        self.running: list[Dashboard] = []

    def __enter__(self) -> Replicas:
        for port in self.ports:
            self._owned.append(contextlib.ExitStack())
            self.running.append(self._start(port))
        return self

    def __exit__(self, *_: object) -> None:
        for owned in self._owned:
            owned.close()

    def _start(self, port: int) -> Dashboard:
        options = ("--port", str(port), "--no-discovery", *self._options)
        owned = self._owned[self.ports.index(port)]
        return owned.enter_context(dashboard(self._folder, *options, timing=PATIENT))

    def kill(self, place: int) -> None:
        self.running[place].kill()

    def revive(self, place: int) -> None:
        self._owned[place].close()
        self.running[place] = self._start(self.ports[place])


@contextlib.contextmanager
def at_work(replicas: Replicas) -> Iterator[list[Talking]]:
    """Loaders that publish to any of them."""
    talking = [Talking(rank, replicas.url) for rank in range(LOADERS)]
    try:
        yield talking
    finally:
        for one in talking:
            one.publisher.close(0.0)


def go_on(talking: list[Talking], acked: list[int]) -> bool:
    """Something happens in all of them; whether all were acknowledged something new."""
    for one in talking:
        one.source.happen()
        one.publisher.wake()
    return all(one.outbox.first > before for one, before in zip(talking, acked, strict=True))


def work_and_kill(replicas: Replicas, talking: list[Talking], kills: int, commands: bool) -> list[Giving]:
    """Kill a replica in turn, while loaders talk and, if so wanted, a command is given to it."""
    dice = random.Random(11)
    given: list[Giving] = []
    began = time.monotonic()
    for number, victim in enumerate(itertools.islice(itertools.cycle((0, 1)), kills)):
        acked = [one.outbox.first for one in talking]
        until(lambda acked=acked: go_on(talking, acked), "all to be acknowledged something new")  # type: ignore[misc]
        at = began + 5.0 * (number + 1) if SOAK else time.monotonic() + dice.random() * 0.3
        while time.monotonic() < at:
            go_on(talking, acked)
            time.sleep(0.02)
        if commands:
            ports = replicas.ports if victim == 0 else replicas.ports[::-1]
            given.append(Giving(ports, talking[number % LOADERS], number))
            time.sleep(dice.random() * 0.05)
        replicas.kill(victim)
        go_on(talking, acked)
        replicas.revive(victim)
        for one in given:
            until(lambda one=one: state_of(replicas, one) == "applied", "its outcome")  # type: ignore[misc]
    return given


def state_of(replicas: Replicas, given: Giving) -> str:
    return str(replicas.running[0].get(f"/api/commands/{given.wait()}")["state"])


def stored_samples(database: Postgres, key: int) -> list[float]:
    """When each sample was taken."""
    connection: Any = database._connected()
    recent = connection.execute("SELECT at FROM recent WHERE loader = %s", (key,)).fetchall()
    chunks = connection.execute("SELECT rows FROM chunks WHERE loader = %s AND tier = 0", (key,)).fetchall()
    return [at for (at,) in recent] + [bucket.at for (rows,) in chunks for bucket in from_rows(rows)]


def end(talking: list[Talking]) -> None:
    for one in talking:
        one.publisher.close(PATIENCE)
        assert not one.outbox._kept, "the goodbye is acknowledged, and all before it"


def check_records(store: str, talking: list[Talking], given: list[Giving]) -> None:
    database = Postgres(store, Retention())
    try:
        keys = {record.id: record.key for record, _ in database.known(0).loaders}
        for one in talking:
            assert one.outbox.dropped == 0
            events = database.events(EventsAsked(keys[one.id], one.id, limit=1_000_000))
            epochs = [msgspec.json.decode(record.body)["epoch"] for record in events]
            assert epochs == list(range(one.source.happened)), "every event once, in order"
            moments = stored_samples(database, keys[one.id])
            assert len(moments) == len(set(moments)) == one.kinds.count("snapshot"), "every snapshot once"
            wanted = [each.wait() for each in given if each.loader is one]
            assert [command.id for command in one.source.commands] == wanted, "every command once, in order"
        stored = database.commands(CommandsAsked(run="kills"))
        assert {command.id for command in stored} == {each.wait() for each in given}
        states = [msgspec.json.decode(command.record, type=CommandRecord).state for command in stored]
        assert states == ["applied"] * len(given)
    finally:
        database.close()


@pytest.mark.timeout(300 + 10 * SOAK)
def test_replicas_killed_while_loaders_publish_lose_nothing_and_store_nothing_twice(
    folder: Path, postgres: PostgresServer
) -> None:
    """Without a bus: they know nothing of each other."""
    store = postgres.database()
    with Replicas(folder, "--store", store) as replicas, at_work(replicas) as talking:
        work_and_kill(replicas, talking, int(SOAK // 5) or 2, commands=False)
        end(talking)
    check_records(store, talking, [])


@pytest.mark.timeout(300 + 10 * SOAK)
def test_replicas_killed_while_people_look_and_give_commands_show_all_once_and_do_all_once(
    folder: Path, postgres: PostgresServer, redis: RedisServer
) -> None:
    store = postgres.database()
    options = ("--store", store, "--bus", redis.url)
    with (
        Replicas(folder, *options) as replicas,
        at_work(replicas) as talking,
        contextlib.ExitStack() as held,
    ):
        for running in replicas.running:
            until(lambda running=running: len(running.get("/api/loaders")) == LOADERS)  # type: ignore[misc]
        names = [one.id for one in talking]
        watching = [Watching(replicas.ports[place:] + replicas.ports[:place], names) for place in range(VIEWERS)]
        for viewer in watching:
            held.callback(viewer.stop)
        given = work_and_kill(replicas, talking, int(SOAK // 5) or 3, commands=True)
        end(talking)
        for viewer in watching:
            for one in talking:
                until(lambda v=viewer, o=one: len(v.seen[o.id]) >= o.source.happened)  # type: ignore[misc]
            viewer.stop()
            assert viewer.seen == {one.id: list(range(one.source.happened)) for one in talking}, "once, in order"
            assert viewer.frames and not viewer.gaps
    check_records(store, talking, given)


def test_a_pin_outlives_the_replica_at_which_it_was_given_and_the_one_with_the_loader(
    folder: Path, postgres: PostgresServer, redis: RedisServer
) -> None:
    def places_at(place: int) -> list[str]:
        return [str(run["place"]) for run in replicas.running[place].get("/api/runs")]

    def put(at: int, place: str) -> None:
        with replicas.running[at].http() as client:
            client.put("/api/runs/kept/place", json={"place": place}).raise_for_status()

    with Replicas(folder, "--store", postgres.database(), "--bus", redis.url) as replicas:
        with replicas.running[0].loader("kept") as loader:
            loader.acknowledged(loader.snapshot().seq)
            until(lambda: places_at(1) == ["shown"], "both to know the run")
            put(1, "hidden")
            put(1, "pinned")
            replicas.kill(1)
        with replicas.running[0].loader("kept", first_seq=1) as loader:  # what is known of it is stored again
            until(lambda: places_at(0) == ["pinned"])
            loader.acknowledged(loader.goodbye())
        replicas.kill(0)
        replicas.revive(0)
        replicas.revive(1)
        assert places_at(0) == places_at(1) == ["pinned"]
