"""`penstock dashboard` and `penstock tokens`, as a person at a terminal meets them."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from penstock import discovery
from penstock.protocol import EpochEvent
from penstock_dashboard.cli import main
from penstock_dashboard.dashboard import add_parser, settings_from
from penstock_dashboard.security.tokens import Keyring, save
from penstock_dashboard.settings import DAY, HOUR, Settings
from websockets.exceptions import ConnectionClosed

from tests.backend.harness import (
    BRISK,
    ROOT,
    SECRETS,
    TOKENS,
    Dashboard,
    dashboard,
    environment,
    serving,
    spawn,
    until,
)
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Dashboard]:
    """A dashboard as a person starts it, for all tests that only look at it."""
    with dashboard(home, "--data", str(home / "data")) as server:
        yield server


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is the same user: it looks for files where that dashboard puts them."""
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)
    return home


def test_one_line_with_a_link_that_signs_in(running: Dashboard) -> None:
    found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#once=(\S+)", running.link)
    assert found is not None
    with running.http(None) as client:
        assert client.post("/api/session", json={"once": found[2]}).status_code == 200
        assert client.post("/api/session", json={"once": found[2]}).status_code == 401, "it works once"


@pytest.mark.usefixtures("at_home")
def test_open_makes_another_link(running: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "--print"]) == 0
    said = capsys.readouterr()
    assert running.secrets["local"] not in said.out + said.err
    found = re.fullmatch(rf"{running.url}/#once=(\S+)\n", said.out)
    assert found is not None
    with running.http(None) as client:
        assert client.post("/api/session", json={"once": found[1]}).json()["session"]["scopes"]


@pytest.mark.usefixtures("at_home")
def test_local_loaders_find_it(running: Dashboard) -> None:
    found = until(discovery.read)
    assert (found.url, found.pid) == (running.url, running.process.pid)
    assert found.token == running.secrets["local"]
    assert stat.S_IMODE(discovery.discovery_path().stat().st_mode) == 0o600


@pytest.mark.usefixtures("at_home")
def test_a_second_start_says_where_the_first_is(running: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--port", "0"]) == 0
    said = capsys.readouterr().out
    assert running.url in said and str(running.process.pid) in said


@pytest.mark.usefixtures("at_home")
def test_a_port_that_is_taken_is_said_to_be_taken_and_by_whom(
    running: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", "--port", str(running.port), "--data", ":memory:", "--no-discovery"]) == 1
    assert f"port {running.port} is taken by process {running.process.pid}" in capsys.readouterr().err


@pytest.mark.usefixtures("running")
def test_two_dashboards_do_not_share_a_database(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--port", "0", "--data", str(at_home / "data"), "--no-discovery"]) == 1
    assert "another dashboard uses" in capsys.readouterr().err


def test_a_file_left_by_a_crash_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    assert discovery.read() is None
    with dashboard(folder) as server:
        until(discovery.read)
        server.kill()
        assert discovery.discovery_path().exists()
        assert discovery.read() is None
    with dashboard(folder) as again:
        until(lambda: (found := discovery.read()) is not None and found.url == again.url)


def test_it_ends_by_itself_when_nobody_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    with dashboard(folder, "--exit-when-idle", "0.5") as server:
        assert server.process.wait(PATIENCE) == 0
        assert discovery.read() is None
        assert not discovery.discovery_path().exists()


def test_it_does_not_take_itself_for_idle_while_a_loader_is_there(folder: Path) -> None:
    idle = threading.Event()
    with serving(Settings(timing=BRISK, exit_when_idle=0.2), folder) as server:
        server.backend.on_idle = idle.set
        with server.loader() as loader:
            loader.snapshot()
            loader.acknowledged(0)
            idle.clear()
            assert not idle.wait(1.0)
        assert idle.wait(PATIENCE)


@pytest.mark.usefixtures("at_home")
def test_a_discovery_file_that_others_could_have_written_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    path = discovery.write(discovery.Discovery("http://127.0.0.1:1", "secret", os.getpid(), time.time()))
    assert discovery.read() is not None
    path.chmod(0o666)
    assert discovery.read() is None
    path.chmod(0o600)
    path.write_text("{")
    assert discovery.read() is None


def test_without_a_runtime_folder_the_state_folder_is_used(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert discovery.discovery_path() == at_home / "state" / "penstock" / "dashboard.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert discovery.discovery_path() == at_home / ".local" / "state" / "penstock" / "dashboard.json"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_with_everybody_connected(folder: Path, number: signal.Signals) -> None:
    """And whatever came by, no secret has been written down, at any level."""
    with (
        dashboard(folder, "--log-level", "debug") as server,
        server.loader() as loader,
        server.viewer() as viewer,
        server.http() as client,
    ):
        client.post("/api/session", json={"token": server.secrets["local"]})
        client.post("/api/session", json={"token": "a-wrong-guess"})
        client.get(f"/?token={server.secrets['viewer']}")
        with contextlib.suppress(Exception):
            server.websocket(f"/ws/live?token={server.secrets['viewer']}", None)
        loader.send(b"\xc1")
        viewer.subscribe(loader.id, overview=True)
        loader.snapshot()
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 1)))
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
        for connection in (loader.socket, viewer.socket):
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    connection.recv(timeout=PATIENCE)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012, "told that it restarts"
        assert server.process.stdout is not None and server.process.stderr is not None
        said = server.process.stdout.read() + server.process.stderr.read()
        assert "Traceback" not in said
        for secret in (*server.secrets.values(), "a-wrong-guess"):
            assert secret not in said


def test_listening_to_the_network_says_what_that_means(folder: Path) -> None:
    where = ("--host", "0.0.0.0", "--port", "0", "--data", ":memory:")
    process = spawn(folder, *where, PENSTOCK_TOKEN="from-compose")
    try:
        assert process.stdout is not None and process.stderr is not None
        link = process.stdout.readline()
        assert "not encrypted" in process.stderr.readline()
        assert "http://127.0.0.1:" in link
        assert "from-compose" not in link, "what is printed has no token in it"
        base = link.split()[-1].partition("/#")[0]
        answer = httpx.get(f"{base}/api/session", headers={"Authorization": "Bearer from-compose"})
        assert answer.status_code == 200, "the environment can set the token"
    finally:
        process.kill()
        process.communicate()


def test_a_home_that_cannot_be_written_to_is_no_reason_to_fail(folder: Path) -> None:
    """It goes on in memory, and says what that means: in words, and on the page."""
    no = "/proc/nowhere"
    token = "known-to-the-test"
    process = spawn(folder, "--port", "0", PENSTOCK_TOKEN=token, HOME=no, XDG_STATE_HOME=no, XDG_RUNTIME_DIR=no)
    try:
        assert process.stdout is not None and process.stderr is not None
        link = process.stdout.readline().split()[-1]
        headers = {"Authorization": f"Bearer {token}"}
        status = httpx.get(f"{link.partition('/#')[0]}/api/status", headers=headers).json()
        assert status["in_memory"] and "memory" in status["warning"]
        process.terminate()
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0
        assert "is kept in memory" in said and "Traceback" not in said
        assert len(said.splitlines()) == 3, said
    finally:
        process.kill()
        process.communicate()


def test_tokens_that_can_only_be_read_hold(folder: Path) -> None:
    path = folder / "tokens.json"
    save(path, TOKENS)
    with open_lock_refused(path):
        assert Keyring(path).find(SECRETS["local"]) is not None


@contextlib.contextmanager
def open_lock_refused(path: Path) -> Iterator[None]:
    """A folder stands where the lock should be, as if nothing could be written here; root may write anywhere else."""
    lock = path.with_name(f".{path.name}.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()
    yield
    lock.rmdir()


def test_the_backend_imports_no_torch() -> None:
    code = "import sys, penstock_dashboard.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=PATIENCE)


def parse(*arguments: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return settings_from(parser.parse_args(["dashboard", *arguments]))


def test_options_become_settings(at_home: Path) -> None:
    assert parse().data == at_home / "state" / "penstock"
    settings = parse("--retention", "30m,12h,2w", "--max-size", "500M", "--public-url", "https://a.example/p/")
    assert settings.root_path == "/p"
    assert (settings.retention.samples, settings.retention.minutes) == (HOUR / 2, 14 * DAY)
    assert settings.retention.max_bytes == 500 << 20


@pytest.mark.parametrize(
    "arguments",
    [["--retention", "soon"], ["--retention", "1d,1h,1m"], ["--max-size", "1K"], ["--public-url", "ml.example"]],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_tokens_can_be_added_listed_and_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--token-file", str(folder / "tokens.json")]
    with serving(Settings(), folder) as server:
        assert main(["tokens", *file, "add", "grafana", "--scope", "view"]) == 0
        secret = capsys.readouterr().out.strip()

        def admitted() -> bool:
            with server.http(None, headers={"Authorization": f"Bearer {secret}"}) as client:
                return client.get("/metrics").status_code == 200

        until(admitted, "the new token to hold without a restart")
        assert main(["tokens", *file, "list"]) == 0
        listed = capsys.readouterr().out
        assert "grafana\tview" in listed and secret not in listed
        assert main(["tokens", *file, "add", "grafana"]) == 1
        assert main(["tokens", *file, "remove", "grafana"]) == 0
        assert main(["tokens", *file, "remove", "grafana"]) == 1
        until(lambda: not admitted(), "the token to be refused")
