"""Real servers of PostgreSQL and Redis, in a folder of their own, on 127.0.0.1 only; they end with the tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.harness import die_with_parent, until

MISSING = "is not installed: as root, `make servers` installs it"


def _postgres_folder() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """A server of PostgreSQL with as many databases as tests want."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.port = unused_port()
        self._binaries = binaries
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = itertools.count(1)
        # It refuses to run as root.
        self._as_its_user = []
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            self._as_its_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        initdb = [str(binaries / "initdb"), "-D", str(self._data), "-U", "tests", "-A", "trust", "-N", "-E", "UTF8"]
        subprocess.run([*self._as_its_user, *initdb, "--locale=C"], check=True, cwd="/", stdout=subprocess.DEVNULL)

    def start(self) -> None:
        died = ["--pdeathsig", "QUIT"] if self._as_its_user else []
        quick = ["fsync=off", "full_page_writes=off", "unix_socket_directories=", "max_connections=200"]
        listening = [f"port={self.port}", "listen_addresses=127.0.0.1"]
        options = [part for option in quick + listening for part in ("-c", option)]
        self._process = subprocess.Popen(
            [*self._as_its_user, *died, str(self._binaries / "postgres"), "-D", str(self._data), *options],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=None if self._as_its_user else die_with_parent,  # noqa: PLW1509
        )
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        until(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL's start")

    def stop(self) -> None:
        """As after a power cut of its own: at once, and nothing is said."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    @property
    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def database(self) -> str:
        """The address of a new database."""
        import psycopg

        name = f"test{next(self._databases)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy".encode())
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://tests@127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    binaries = _postgres_folder()
    pytest.importorskip("psycopg")
    if binaries is None:
        pytest.skip(f"PostgreSQL {MISSING}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        server = PostgresServer(binaries, Path(name))
        server.start()
        try:
            yield server
        finally:
            server.stop()


class RedisServer:
    """A server of Redis that keeps nothing."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.port = unused_port()
        self.url = f"redis://:secret@127.0.0.1:{self.port}/0"
        self._command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", "secret"]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509  the tests that start processes have no threads of their own
        )
        until(self._answers, "Redis' start")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    @property
    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    binary = shutil.which("redis-server")
    pytest.importorskip("redis")
    if binary is None:
        pytest.skip(f"Redis {MISSING}")
    with tempfile.TemporaryDirectory() as name:
        server = RedisServer(binary, Path(name))
        server.start()
        try:
            yield server
        finally:
            server.stop()
