"""Runs pinned, hidden and deleted: over the API, across restarts, under the size cap."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from penstock.protocol import Command, Note, Overview
from penstock_dashboard.settings import Settings
from penstock_dashboard.store.sqlite.schema import open_database
from penstock_dashboard.store.sqlite.space import Space

from tests.backend.harness import BRISK, Running, serving, until


def past(server: Running, run: str) -> str:
    """A loader that has reported, was told something, and is gone; its id."""
    with server.loader(run) as loader:
        loader.snapshot()
        loader.acknowledged(loader.events(Note(time.time(), "lr drop")))
        with server.http() as client:
            assert client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"}).status_code == 202
        loader.outcome(loader.expect(Command), "applied")
        loader.acknowledged(loader.goodbye())
    until(lambda: not server.backend.registry.get(loader.id).connected, f"the end of {run}")  # type: ignore[union-attr]
    return loader.id


def put(server: Running, run: str, place: str, token: str = "local") -> Any:
    with server.http(token) as client:
        return client.put(f"/api/runs/{run}/place", json={"place": place})


def delete(server: Running, run: str, token: str = "local") -> Any:
    with server.http(token) as client:
        return client.delete(f"/api/runs/{run}")


def places(server: Running) -> dict[str, str]:
    return {run["run"]: run["place"] for run in server.get("/api/runs")}


def stored(folder: Path, table: str) -> int:
    """Rows that there are in the file."""
    with sqlite3.connect(folder / "penstock.db") as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(rows)


def test_hidden_runs_are_left_out_unless_asked_for_and_that_is_told_live(server: Running) -> None:
    identifier = past(server, "hidden-one")
    with server.viewer() as viewer:
        viewer.subscribe(overview=True)
        viewer.expect(Overview, lambda message: any(row.id == identifier for row in message.rows))
        assert put(server, "hidden-one", "hidden").json()["place"] == "hidden"
        viewer.expect(Overview, lambda message: ("hidden", identifier) in [(row.place, row.id) for row in message.rows])
    listed = [row["id"] for row in server.get("/api/loaders")]
    assert identifier not in listed
    assert identifier in [row["id"] for row in server.get("/api/loaders", hidden=True)]
    assert [row["id"] for row in server.get("/api/loaders", run="hidden-one")] == [identifier]
    with server.loader("hidden-one", rank=1) as later:
        assert server.get("/api/loaders", run="hidden-one")[-1]["id"] == later.id
        assert {row["place"] for row in server.get("/api/loaders", run="hidden-one")} == {"hidden"}
    assert put(server, "hidden-one", "shown").json()["loaders"] == 2
    assert identifier in [row["id"] for row in server.get("/api/loaders")]


def test_a_connected_run_is_not_deleted_and_says_why(server: Running) -> None:
    with server.loader("at-work") as loader:
        loader.acknowledged(loader.snapshot().seq)
        refused = delete(server, "at-work")
        assert refused.status_code == 409
        assert refused.json()["detail"].startswith("“at-work” cannot be deleted: 1 loader is connected.")
        assert places(server)["at-work"] == "shown"
    assert server.get("/api/runs/changes", run="at-work") == []


def test_only_control_may_change_runs(server: Running) -> None:
    past(server, "guarded")
    for token in ("viewer", "publisher"):
        assert put(server, "guarded", "hidden", token).status_code == 403
        assert delete(server, "guarded", token).status_code == 403
    assert put(server, "guarded", "nowhere").status_code == 422
    assert put(server, "no-such-run", "hidden").status_code == 404
    assert delete(server, "no-such-run").status_code == 404
    assert places(server)["guarded"] == "shown"


def test_deleting_takes_every_trace_and_is_itself_remembered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = Settings(data=data, timing=BRISK)
    with serving(settings, tmp_path) as server:
        kept, gone = past(server, "kept"), past(server, "gone")
        assert put(server, "kept", "pinned").status_code == 200
        assert put(server, "gone", "hidden").status_code == 200
        told = delete(server, "gone").json()
        assert told["text"] == "Deleted, with 1 loader, by local (127.0.0.1)"
        assert server.get("/api/loaders", hidden=True)[0]["id"] == kept
        with server.http() as client:
            assert client.get(f"/api/loaders/{gone}").status_code == 404
            assert client.get("/api/runs/gone/commands").json() == []
    for table in ("loaders", "marks", "recent", "events", "commands"):
        assert stored(data, table) == 1, table
    with serving(settings, tmp_path) as server:
        assert places(server) == {"kept": "pinned"}
        done = [(change["run"], change["change"], change["by"]) for change in server.get("/api/runs/changes")]
        assert done == [("gone", "deleted", "local"), ("gone", "hidden", "local"), ("kept", "pinned", "local")]
        with server.loader("gone", first_seq=5) as again:
            assert again.welcome.last_seq == -1
            assert places(server)["gone"] == "shown"


def test_what_is_pinned_goes_last_when_room_is_needed(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "penstock.db")
    space = Space(tmp_path / "penstock.db", 16 << 20)
    space.attach(connection)
    connection.execute("INSERT INTO owners (id, name, bytes) VALUES (1, 'local', 1)")
    for key, place in ((1, "pinned"), (2, "shown")):
        connection.execute(
            "INSERT INTO loaders (key, id, hello, presence, seen, owner) VALUES (?, ?, '', 'lost', 0, 1)",
            (key, f"run{key}:0:train"),
        )
        connection.execute("INSERT INTO places (run, place, number) VALUES (?, ?, ?)", (f"run{key}", place, key))
        # The pinned one's are the older ones: without a pin, they would go first.
        connection.executemany(
            "INSERT INTO events (loader, at, kind, body, owner) VALUES (?, ?, 'note', ?, 1)",
            [(key, key * 100.0 + n, b"x" * 100_000) for n in range(50)],
        )

    def left(key: int) -> int:
        return int(connection.execute("SELECT count(*) FROM events WHERE loader = ?", (key,)).fetchone()[0])

    space.make_room(connection, 4 << 20)
    assert left(1) == 50 and left(2) < 50
    connection.execute("DELETE FROM events WHERE loader = 2")
    connection.executemany(
        "INSERT INTO events (loader, at, kind, body, owner) VALUES (1, ?, 'note', ?, 1)",
        [(float(n), b"x" * 100_000) for n in range(40)],
    )
    space.make_room(connection, 4 << 20)
    assert left(1) < 90, "what is pinned goes too when there is nothing else"
    connection.close()
