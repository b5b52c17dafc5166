"""Demos in processes of their own, seen through the API of a dashboard that runs already."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backend.harness import Dashboard, dashboard, environment, until
from tests.loader.support import Scripts

BODY = """
import json, os, sys
os.environ.update(json.loads(sys.argv.pop(1)))
from penstock.demo.__main__ import main
sys.exit(main())
"""


class Watched:
    """A run as the dashboard's API shows it."""

    def __init__(self, client: httpx.Client, run: str) -> None:
        self._client = client
        self.run = run

    def rows(self) -> list[Any]:
        found: list[Any] = self._client.get("/api/loaders", params={"run": self.run}).json()
        return found

    def snapshot(self, least: int = 1) -> Any:
        """The first one with so many batches."""

        def probe() -> Any:
            for row in self.rows():
                detail = self._client.get(f"/api/loaders/{row['id']}").json()
                if detail["snapshot"] and detail["snapshot"]["batches"] >= least:
                    return detail["snapshot"]
            return None

        return until(probe, f"batch {least} of {self.run}")

    def events(self, kind: str) -> list[Any]:
        (row,) = self.rows()
        stored = self._client.get(f"/api/loaders/{row['id']}/events", params={"kind": kind}).json()
        return [each["event"] for each in stored]

    def resize(self, workers: int) -> list[str]:
        """Ask all ranks; the commands' ids."""
        answer = self._client.post(f"/api/runs/{self.run}/commands", json={"action": "resize", "workers": workers})
        assert answer.status_code == 202, answer.text
        return [command["id"] for command in answer.json()["commands"]]

    def reach(self, command: str, state: str) -> Any:
        """The command, when it is in that state."""

        def probe() -> Any:
            record = self._client.get(f"/api/commands/{command}").json()
            return record if record["state"] == state else None

        return until(probe, f"a command to be {state}")


def waited(before: Any, after: Any) -> int:
    """µs between two snapshots in which training did not compute."""
    return sum(after["times"][kind] - before["times"][kind] for kind in before["times"] if kind != "compute_us")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Dashboard]:
    with dashboard(home, "--data", ":memory:") as server:
        yield server


Demo = Callable[..., AbstractContextManager[Watched]]


@pytest.fixture
def demo(running: Dashboard, home: Path, script: Scripts) -> Demo:
    """Runs a scenario, which must find the dashboard by itself."""

    @contextmanager
    def run(scenario: str, *arguments: str) -> Iterator[Watched]:
        settings = json.dumps({**environment(home), "PENSTOCK_RUN": scenario})
        with script(BODY, settings, "--scenario", scenario, *arguments) as process, running.http() as client:
            assert process.line() == f"Penstock is at {running.url}/ (`penstock open` signs a browser in)"
            yield Watched(client, scenario)

    return run
