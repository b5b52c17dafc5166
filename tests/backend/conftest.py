from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock_dashboard.settings import Settings

from tests.backend.harness import BRISK, Running, serving
from tests.backend.servers import PostgresServer, RedisServer, postgres_server, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A backend with its database in a file, shared by one module's tests: each uses a run of its own."""
    folder = tmp_path_factory.mktemp("server")
    with serving(Settings(data=folder / "data", timing=BRISK), folder) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server of PostgreSQL for all tests of a process; each asks for a database of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One server of Redis for all tests of a process: replicas on another database do not hear each other."""
    with redis_server() as server:
        yield server
