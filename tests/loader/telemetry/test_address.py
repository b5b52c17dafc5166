from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from penstock import discovery
from penstock.discovery import Discovery
from penstock.telemetry import local
from penstock.telemetry.address import Address, LocalAddress, resolve

from tests.loader.support import ROOT
from tests.loader.telemetry.servers import blocked_signals, until
from tests.patience import PATIENCE


@pytest.mark.parametrize(
    ("given", "url", "websocket"),
    [
        ("http://127.0.0.1:8787", "http://127.0.0.1:8787", "ws://127.0.0.1:8787/ws/publish"),
        ("http://127.0.0.1:8787/", "http://127.0.0.1:8787", "ws://127.0.0.1:8787/ws/publish"),
        ("https://example.org/penstock/", "https://example.org/penstock", "wss://example.org/penstock/ws/publish"),
        ("ws://host:1/ws/publish", "http://host:1", "ws://host:1/ws/publish"),
        ("wss://host", "https://host", "wss://host/ws/publish"),
        ("http://[::1]:8787", "http://[::1]:8787", "ws://[::1]:8787/ws/publish"),
        (" http://host:1 ", "http://host:1", "ws://host:1/ws/publish"),
    ],
)
def test_a_url_says_where_to_publish(given: str, url: str, websocket: str) -> None:
    address = resolve(given)
    assert isinstance(address, Address)
    assert (address.url, address.websocket, address.token) == (url, websocket, "")


def test_the_link_that_the_dashboard_prints_brings_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", "another")
    assert resolve("http://127.0.0.1:8787/#token=s3cr-t_") == Address("http://127.0.0.1:8787", "s3cr-t_")


def test_without_an_argument_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(None) is None
    monkeypatch.setenv("PENSTOCK_URL", "http://host:1")
    monkeypatch.setenv("PENSTOCK_TOKEN", "t")
    assert resolve(None) == Address("http://host:1", "t")
    assert resolve("http://other:2") == Address("http://other:2", "t")
    assert resolve(False) is None
    monkeypatch.setenv("PENSTOCK_URL", "")
    assert resolve(None) is None


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "localhost:8787",
        "127.0.0.1",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://h?a=b",
        "http://user:password@host",
        "http://host#tokn=x",
        "http://host#token=",
        "http://host#token=a%20b",
    ],
)
def test_a_bad_url_is_named_without_its_secrets(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="monitor") as caught:
        resolve(bad)
    assert "password" not in str(caught.value) or "user name or password" in str(caught.value)
    assert "user:" not in str(caught.value)
    if bad:
        monkeypatch.setenv("PENSTOCK_URL", bad)
        with pytest.raises(ValueError, match="PENSTOCK_URL"):
            resolve(None)


@pytest.mark.parametrize("bad", [1, 0, 3.5, Path("/tmp"), b"http://host", ["http://host"]])
def test_other_types_are_refused(bad: object) -> None:
    with pytest.raises(TypeError, match="monitor must be a URL, True, False or None"):
        resolve(bad)  # type: ignore[arg-type]


def announce(url: str, token: str = "local-token") -> None:
    discovery.write(Discovery(url, token, os.getpid(), time.time()))


def test_the_token_of_the_local_dashboard_is_found() -> None:
    address = resolve("http://localhost:8787")
    assert isinstance(address, Address) and address.find().token == ""
    announce("http://127.0.0.1:8787")  # started later: found at the next attempt
    assert address.find() == Address("http://localhost:8787", "local-token")
    assert Address("http://localhost:8788").find().token == ""
    assert Address("http://192.0.2.1:8787").find().token == ""  # never given to a stranger
    assert Address("http://localhost:8787", "own").find().token == "own"


def test_true_means_the_local_dashboard_wherever_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    announce("http://127.0.0.1:1111")
    address = resolve(True)
    assert isinstance(address, LocalAddress)
    assert address.find() == Address("http://127.0.0.1:1111", "local-token")
    announce("http://127.0.0.1:2222", "new")
    assert address.find() == Address("http://127.0.0.1:2222", "new")
    address.find()
    links = capsys.readouterr().err.splitlines()
    assert links == [
        "Penstock is at http://127.0.0.1:1111/ (`penstock open` signs a browser in)",
        "Penstock is at http://127.0.0.1:2222/ (`penstock open` signs a browser in)",
    ]


def test_one_that_was_there_and_was_ended_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_started", False)
    monkeypatch.setattr(subprocess, "Popen", lambda *_a, **_k: pytest.fail("started"))
    announce("http://127.0.0.1:1111")
    address = LocalAddress()
    assert address.find() is not None
    discovery.discovery_path().unlink()
    assert address.find() is None


def test_only_the_first_process_of_a_machine_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_a, **_k: pytest.fail("started"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert LocalAddress().find() is None


TRAINING = """
import sys, time
from penstock import discovery
from penstock.telemetry.publisher import publish
from tests.loader.telemetry.sources import CountingSource
sources = [CountingSource("train"), CountingSource("val")]
publishers = [publish(source, True, 0.05) for source in sources]
while not all(publisher._welcomed for publisher in publishers):
    time.sleep(0.02)
print(discovery.read().pid)
"""


def test_a_dashboard_is_started_once_and_outlives_the_training(tmp_path: Path) -> None:
    """In a folder in which `backend` means something else."""
    (tmp_path / "backend.py").write_text("raise SystemExit('the wrong one')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pid = 0
    try:
        script = [sys.executable, "-c", TRAINING]
        done = subprocess.run(
            script, cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        pid = int(done.stdout)
        found = discovery.read()
        assert found is not None and found.pid == pid
        assert done.stderr.count(f"Penstock is at {found.url}/ ") == 1
        assert found.token not in done.stderr + done.stdout, "logs and notebooks are passed on"
        assert os.getsid(pid) != os.getsid(0)
        assert blocked_signals(Path(f"/proc/{pid}/status")) == set()  # SIGTERM ends it
    finally:
        found = discovery.read()
        pid = pid or (found.pid if found is not None else 0)
        if pid:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


def test_a_dashboard_that_cannot_start_is_told_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local, "_started", False)
    monkeypatch.setattr(local, "_START", "import sys; sys.exit(7)")
    address = LocalAddress()
    try:
        until(lambda: address.find() is None and "status 7" in caplog.text)
    finally:
        child = local._child
        if child is not None:
            child.kill()
            child.wait(PATIENCE)
    for _ in range(5):
        assert address.find() is None
    assert caplog.text.count("status 7") == 1 and "dashboard.log" in caplog.text


def test_several_addresses_are_taken_in_turn() -> None:
    found = resolve("http://a:1/p#token=x,y, https://b,http://c:3")
    assert found is not None and found.url == "http://a:1/p,https://b,http://c:3"
    asked = [found.find() for _ in range(6)]
    assert asked[:3] == asked[3:]
    assert {(one.url, one.token) for one in asked if one} == {
        ("http://a:1/p", "x,y"),
        ("https://b", ""),
        ("http://c:3", ""),
    }
    with pytest.raises(ValueError, match="must be a URL"):
        resolve("http://a:1,b:2://c")
