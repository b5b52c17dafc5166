from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from penstock_dashboard.cli import main

from tests.backend.harness import SECRETS, Running, until
from tests.recorded.replay import Fleet
from tests.recorded.shapes import Shape
from tests.recorded.stage import Stage, Trained

Call = Callable[..., tuple[int, str, str]]
Train = Callable[..., Trained]


@pytest.fixture(scope="module")
def fleet(server: Running) -> Iterator[Fleet]:
    """Recorded loaders to look at; each test uses a run of its own."""
    fleet = Fleet(server.url, SECRETS["local"])
    yield fleet
    fleet.close()


@pytest.fixture(scope="package")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture
def train(stage: Stage, server: Running) -> Iterator[Train]:
    """Real loaders to steer: `train(run, workers=2, …)` returns when the backend knows its workers."""

    def start(run: str, name: str = "train", rank: int = 0, world_size: int = 1, **shape: Any) -> Trained:
        made = Shape(**{"workers": 2, **shape})
        trained = stage.train(server.url, SECRETS["local"], made, run, name, rank, world_size)
        present(server, trained.id, made.workers)
        return trained

    yield start
    stage.clear()


def present(server: Running, loader: str, workers: int) -> None:
    """Wait until the backend knows this loader with so many workers."""
    until(lambda: {"id": loader, "workers": workers} in rows(server), f"{workers} workers of {loader}")


def rows(server: Running) -> list[dict[str, Any]]:
    return [{"id": row["id"], "workers": row["workers"]} for row in server.get("/api/loaders")]


@pytest.fixture
def call(server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `penstock …` against the server: exit status, stdout, stderr."""
    monkeypatch.delenv("PENSTOCK_URL", raising=False)

    def run(*arguments: str, token: str = "local", url: str = server.url) -> tuple[int, str, str]:
        monkeypatch.setenv("PENSTOCK_TOKEN", SECRETS[token])
        try:
            status = main([*arguments, "--url", url])
        except SystemExit as error:  # argparse
            status = int(str(error.code))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run
