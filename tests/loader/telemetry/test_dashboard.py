"""A training and the real dashboard, each in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import DataLoader

from tests.backend.harness import dashboard
from tests.loader.support import Samples
from tests.loader.telemetry.servers import until


def test_a_snapshot_arrives_and_a_resize_comes_back_and_is_answered(tmp_path: Path) -> None:
    with dashboard(tmp_path, "--data", ":memory:") as running, running.http() as client:
        loader: DataLoader[Any] = DataLoader(
            Samples("int", 1_000_000),
            batch_size=4,
            num_workers=1,
            name="train",
            monitor=f"{running.url}#token={running.secrets['local']}",
            publish_interval=0.05,
        )
        iterator = iter(loader)
        next(iterator)

        def row() -> Any:
            rows = client.get("/api/loaders").json()
            return rows[0] if rows and rows[0]["batch"] > 0 else None

        found = until(row, "a snapshot")
        assert found["identity"]["name"] == "train" and found["presence"] == "connected"

        answer = client.post(f"/api/loaders/{found['id']}/commands", json={"action": "resize", "workers": 3})
        assert answer.status_code in (200, 201, 202), answer.text
        identifier = answer.json()["id"]

        def outcome() -> Any:
            next(iterator)
            commands = client.get(f"/api/loaders/{found['id']}/commands").json()
            (command,) = (each for each in commands if each["id"] == identifier)
            return command if command["state"] == "applied" else None

        applied = until(outcome, "the outcome")
        assert applied["actual"] == 3
        assert [step["state"] for step in applied["transitions"]] == ["accepted", "delivered", "applied"]
        until(lambda: client.get(f"/api/loaders/{found['id']}").json()["snapshot"]["target"] == 3)

        loader.close()
        until(lambda: client.get(f"/api/loaders/{found['id']}").json()["row"]["presence"] == "finished")
