"""Several replicas: whoever is connected where, everybody sees everything, and commands arrive."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from penstock.protocol import Command, CommandChanged, Detail, EpochEvent, Errors, Frame, Happened, Overview, Pace
from penstock_dashboard import replicas
from penstock_dashboard.settings import AlertSettings, Settings
from websockets.exceptions import ConnectionClosed

from tests.backend.harness import BRISK, Address, Running, serving, until
from tests.backend.receivers import receiver
from tests.backend.servers import PostgresServer, RedisServer, redis_server
from tests.patience import PATIENCE

pytest.importorskip("psycopg")
pytest.importorskip("redis")

Pair = tuple[Running, Running]


@pytest.fixture(scope="module")
def pair(
    postgres: PostgresServer, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Running]]:
    """Two replicas, shared by this module's tests: each uses a run of its own."""
    folder = tmp_path_factory.mktemp("replicas")
    settings = Settings(store=postgres.database(), bus=redis.url, timing=BRISK)
    with serving(settings, folder) as here, serving(settings, folder) as there:
        until(lambda: here.backend.replicas.share[1] == there.backend.replicas.share[1] == 2, "both to know each other")
        assert {here.backend.replicas.share[0], there.backend.replicas.share[0]} == {0, 1}
        yield here, there


def test_what_is_connected_here_is_listed_there_with_its_numbers(pair: Pair) -> None:
    here, there = pair
    with here.loader("listed") as loader:
        loader.snapshot()
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 1)))
        row = until(lambda: next((row for row in there.get("/api/loaders", run="listed") if row["workers"] == 2), None))
        assert (row["presence"], row["state"]) == ("connected", "running")
        detail = there.get(f"/api/loaders/{loader.id}")
        assert detail["snapshot"]["seq"] == 0 and len(detail["snapshot"]["workers"]) == 2
        assert len(there.get(f"/api/loaders/{loader.id}/history")["at"]) == 1
        assert [stored["event"]["epoch"] for stored in there.get(f"/api/loaders/{loader.id}/events")] == [1]
        assert there.get(f"/api/loaders/{loader.id}/predictions")["loader"] == loader.id
        loader.acknowledged(loader.goodbye())
    until(lambda: there.get(f"/api/loaders/{loader.id}")["row"]["presence"] == "finished")


def test_frames_and_events_cross_only_while_somebody_watches(pair: Pair) -> None:
    here, there = pair
    with here.loader("watched") as loader:
        loader.snapshot()
        assert not here.backend.replicas.watched(loader.id)
        until(lambda: there.backend.registry.get(loader.id))
        with there.viewer() as viewer:
            viewer.subscribe(loader.id)
            assert viewer.expect(Detail, lambda told: told.detail.snapshot is not None).detail.row.id == loader.id
            assert loader.expect(Pace).interval_us == 200_000, "it is looked at: five times a second"
            sent = loader.snapshot()
            frame = viewer.expect(Frame, lambda frame: frame.snapshot.seq == sent.seq)
            assert frame.rates.batches > 0
            loader.events(EpochEvent(time.time(), "started", 7))
            (event,) = viewer.expect(Happened).events
            assert isinstance(event.event, EpochEvent) and event.event.epoch == 7
        until(lambda: not here.backend.replicas.watched(loader.id), "nobody to watch any more")


def test_the_overview_has_the_rows_of_all(pair: Pair) -> None:
    here, there = pair
    with here.loader("over", rank=0) as first, there.loader("over", rank=1) as second, there.viewer() as viewer:
        viewer.subscribe(overview=True)
        wanted = {first.id, second.id}
        seen: dict[str, int] = {}
        while not all(seen.get(name) == 2 for name in wanted):
            first.snapshot()
            second.snapshot()
            overview = viewer.expect(Overview)
            seen |= {row.id: row.workers for row in overview.rows if row.id in wanted}


def test_a_command_given_there_reaches_the_loader_here_and_is_followed_there(pair: Pair) -> None:
    here, there = pair
    with here.loader("ordered") as loader, there.viewer() as viewer, there.http() as client:
        until(lambda: there.backend.registry.get(loader.id))
        viewer.subscribe(loader.id)
        key = {"Idempotency-Key": "once"}
        body = {"action": "resize", "workers": 5}
        given = client.post(f"/api/loaders/{loader.id}/commands", json=body, headers=key)
        assert given.status_code == 202, given.text
        command = loader.expect(Command)
        assert command.id == given.json()["id"]
        loader.outcome(command, "delivered")
        loader.outcome(command, "applied", actual=5)
        done = viewer.expect(CommandChanged, lambda changed: changed.command.state == "applied")
        assert done.command.actual == 5
        until(lambda: there.get(f"/api/commands/{command.id}")["state"] == "applied")
        with here.http() as other:
            again = other.post(f"/api/loaders/{loader.id}/commands", json=body, headers=key)
        assert again.json()["id"] == command.id, "the same key is the same command, at every replica"
        assert there.backend.commands.open_count == here.backend.commands.open_count == 0


def test_a_loader_that_goes_to_another_replica_takes_its_open_command_along(pair: Pair) -> None:
    here, there = pair
    with here.loader("moving") as loader, here.http() as client:
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 0)))
        client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"}).raise_for_status()
        command = loader.expect(Command)
        with there.loader("moving", first_seq=1) as again:
            assert again.welcome.last_seq == 0
            assert again.expect(Command).id == command.id, "it may have been lost with the connection"
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    loader.socket.recv(timeout=PATIENCE)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
            again.outcome(command, "applied")
            until(lambda: here.get(f"/api/commands/{command.id}")["state"] == "applied")
            again.acknowledged(again.events(EpochEvent(time.time(), "started", 1)))
            found = here.get(f"/api/loaders/{loader.id}/events")
            assert [stored["event"]["epoch"] for stored in found] == [0, 1]
            until(lambda: here.get(f"/api/loaders/{loader.id}")["row"]["presence"] == "connected")


def place_of(running: Address, run: str) -> str:
    return next(str(each["place"]) for each in running.get("/api/runs") if each["run"] == run)


def put(running: Address, run: str, place: str) -> None:
    with running.http() as client:
        client.put(f"/api/runs/{run}/place", json={"place": place}).raise_for_status()


def test_the_last_place_of_a_run_holds_at_all_wherever_it_was_given_and_whatever_is_stored_of_its_loaders(
    pair: Pair,
) -> None:
    here, there = pair
    with here.loader("placed") as loader, here.viewer() as viewer:
        loader.acknowledged(loader.snapshot().seq)
        until(lambda: there.backend.registry.get(loader.id))
        viewer.subscribe(overview=True)
        put(there, "placed", "hidden")
        viewer.expect(Overview, lambda told: ("hidden", loader.id) in [(row.place, row.id) for row in told.rows])
        put(here, "placed", "shown")
        put(there, "placed", "pinned")
        until(lambda: place_of(here, "placed") == "pinned")
        with there.loader("placed", rank=1):
            loader.acknowledged(loader.goodbye())  # what is known of it is stored, and told
    until(lambda: there.get(f"/api/loaders/{loader.id}")["row"]["presence"] == "finished")
    assert place_of(here, "placed") == place_of(there, "placed") == "pinned"
    assert [change["change"] for change in here.get("/api/runs/changes", run="placed")] == ["pinned", "shown", "hidden"]


def test_a_replica_that_has_not_heard_of_a_place_is_told_when_it_speaks_of_the_run(pair: Pair) -> None:
    here, there = pair
    with here.loader("unheard") as loader:
        until(lambda: there.backend.registry.get(loader.id))
        put(there, "unheard", "pinned")
        until(lambda: place_of(here, "unheard") == "pinned")

        def forget() -> None:
            here.backend.registry._places.clear()
            here.backend.registry.get(loader.id).place = "shown"  # type: ignore[union-attr]

        here.call(forget)
        until(lambda: place_of(here, "unheard") == "shown")
        loader.acknowledged(loader.goodbye())
        until(lambda: place_of(here, "unheard") == "pinned")
        assert place_of(there, "unheard") == "pinned"


def test_sessions_and_links_hold_at_every_replica_and_links_once(pair: Pair) -> None:
    here, there = pair
    with here.http() as client:
        once = client.post("/api/session/links").json()["fragment"].removeprefix("#once=")
    with there.http(None) as browser, here.http(None) as another:
        signed = browser.post("/api/session", json={"once": once})
        assert signed.status_code == 200, signed.text
        assert another.post("/api/session", json={"once": once}).status_code == 401, "it was used there"
        cookie = browser.cookies[f"penstock-{there.port}"]
        headers = {"X-Penstock-Page": signed.json()["page"], "Cookie": f"penstock-{here.port}={cookie}"}
        assert another.get("/api/session", headers=headers).status_code == 200
        browser.delete("/api/session", headers={"X-Penstock-Page": signed.json()["page"]}).raise_for_status()
        until(lambda: another.get("/api/session", headers=headers).status_code == 401, "the sign-out to be known here")


def test_when_a_replica_ends_its_loaders_are_stale_elsewhere(
    folder: Path, postgres: PostgresServer, redis: RedisServer
) -> None:
    settings = Settings(store=postgres.database(), bus=redis.url, timing=BRISK)
    with serving(settings, folder) as here:
        with serving(settings, folder) as there, there.loader("left") as loader:
            loader.snapshot()
            until(lambda: any(row["workers"] == 2 for row in here.get("/api/loaders")))
        row = until(lambda: next((row for row in here.get("/api/loaders") if row["presence"] == "stale"), None))
        assert row["workers"] == 2, "what was said last is what is known"
        assert here.backend.replicas.share == (0, 1)


def rules_at(running: Running) -> set[tuple[str, str, bool]]:
    """Rule, loader, and whether it holds, of all alerts that are seen there."""
    return {(one["rule"], one["loader"], one["ended"] is None) for one in running.get("/api/alerts")["alerts"]}


def series_of(running: Running, run: str) -> int:
    """How many loaders of a run Prometheus finds there."""
    with running.http() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(line.startswith("penstock_loader_up{") and f'run="{run}"' in line for line in lines)


def test_alerts_are_seen_at_every_replica_and_told_once_whoever_is_left_to_tell(
    folder: Path, postgres: PostgresServer, redis: RedisServer
) -> None:
    timing = msgspec.structs.replace(BRISK, reconnect=0.5)
    with receiver([]) as (url, heard), contextlib.ExitStack() as held:
        alerts = AlertSettings(webhooks=(url,))
        settings = Settings(store=postgres.database(), bus=redis.url, timing=timing, alerts=alerts)
        both = here, there = [held.enter_context(serving(settings, folder)) for _ in range(2)]
        with serving(settings, folder) as third:
            until(lambda: here.backend.replicas.share[1] == there.backend.replicas.share[1] == 3)
            fails, dies = (held.enter_context(third.loader(run)) for run in ("fails", "dies"))
            dies.snapshot()
            fails.snapshot(state="failed", errors=Errors(1, 1.0, "ValueError: torn", fatal=True))
            for one in both:
                until(lambda one=one: rules_at(one) == {("failed", fails.id, True)})  # type: ignore[misc]
                until(lambda one=one: one.backend.registry.get(dies.id).state == "running")  # type: ignore[misc]
            with there.viewer() as viewer:
                (shown,) = viewer.alerts.alerts
                assert "torn" in shown.text
            assert [series_of(one, "dies") for one in (here, there, third)] == [0, 0, 1]
        # The replica is gone, and both loaders with it: one of those that are left says so.
        for one in both:
            until(lambda one=one: rules_at(one) == {("failed", fails.id, True), ("lost", dies.id, True)})  # type: ignore[misc]
        with here.loader("dies", first_seq=1) as again:
            again.snapshot()
            for one in both:
                until(lambda one=one: ("lost", dies.id, False) in rules_at(one))  # type: ignore[misc]
            until(lambda: any(told["state"] == "ended" for told in heard), "the end to be told")
            assert [series_of(one, "dies") for one in both] == [1, 0]
            again.acknowledged(again.goodbye())
    told = sorted((one["alert"]["rule"], one["state"]) for one in heard)
    assert told == [("failed", "firing"), ("lost", "ended"), ("lost", "firing")]


def test_nobody_is_called_lost_because_the_bus_is(
    folder: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = msgspec.structs.replace(BRISK, reconnect=0.5)
    with redis_server() as own, contextlib.ExitStack() as held:
        settings = Settings(store=postgres.database(), bus=own.url, timing=timing)
        here, there = (held.enter_context(serving(settings, folder)) for _ in range(2))
        with there.loader("unseen") as loader:
            loader.snapshot()
            until(lambda: (entry := here.backend.registry.get(loader.id)) and entry.state == "running")
            own.stop()
            with monkeypatch.context() as patched:
                patched.setattr(replicas, "GONE", 0.1)
                until(lambda: here.backend.registry.get(loader.id).presence == "lost")  # type: ignore[union-attr]
                here.call(here.backend.lookout.look)
                assert rules_at(here) == rules_at(there) == set()
            own.start()
            until(lambda: here.get(f"/api/loaders/{loader.id}")["row"]["presence"] == "connected")
            here.call(here.backend.lookout.look)
            assert rules_at(here) == rules_at(there) == set()


def test_without_the_bus_everything_here_goes_on_and_it_comes_back(folder: Path, postgres: PostgresServer) -> None:
    with redis_server() as own, contextlib.ExitStack() as held:
        settings = Settings(store=postgres.database(), bus=own.url, timing=BRISK)
        here, there = (held.enter_context(serving(settings, folder)) for _ in range(2))
        own.stop()
        until(lambda: "bus" in here.backend.warning)
        with here.loader("alone") as loader:
            loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 0)))
            own.start()
            until(lambda: there.backend.registry.get(loader.id), "it to be known there, too")
            until(lambda: not here.backend.warning)
