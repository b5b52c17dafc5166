"""`docker compose up` for real: build, up, two ranks, metrics, a resize, down. PENSTOCK_COMPOSE=1 asks for it.

It takes minutes and builds images, so it is not part of a usual run. `compose-check` stands in for Docker where there
is none; it needs root.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from tests.compose.files import ROOT

TOOL = Path(os.environ.get("COMPOSE_CHECK", ROOT.parent / "shared" / "tools" / "compose-check"))
PROJECT = re.sub(r"[^-_a-z0-9]", "", ROOT.name.lower())
"""What podman-compose 1.0.3 calls it, whatever the file or the environment says."""
PATIENCE = 180.0
"""Seconds until two ranks that import torch must have come, on a busy machine."""

pytestmark = [
    pytest.mark.skipif(os.environ.get("PENSTOCK_COMPOSE") != "1", reason="PENSTOCK_COMPOSE=1 asks for it"),
    pytest.mark.skipif(not TOOL.exists() or shutil.which("podman") is None, reason="needs compose-check and podman"),
    pytest.mark.timeout(1800),
]

T = TypeVar("T")


def until(probe: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"waited in vain for {what}")


def tool(*arguments: str, environment: dict[str, str]) -> None:
    done = subprocess.run([TOOL, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def podman(*arguments: str) -> str:
    # Its settings decide where networks are looked for, so they must be those that the tool made.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = {**os.environ, "CONTAINERS_CONF": str(cache / "compose-check" / "containers.conf")}
    command = ["podman", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout


def remains() -> list[str]:
    """Containers and volumes of this project."""
    containers = podman("ps", "-aq", "--filter", f"label=io.podman.compose.project={PROJECT}").split()
    return containers + [name for name in podman("volume", "ls", "-q").split() if name.startswith(f"{PROJECT}_")]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    assert not remains(), "somebody uses them: `compose-check down -v` first"
    environment = {**os.environ, "PENSTOCK_PORT": str(port)}
    environment.pop("PENSTOCK_TOKEN", None)
    try:
        tool("up", "backend", "training", environment=environment)
        yield f"http://localhost:{port}"
    finally:
        tool("down", "-v", environment=environment)
        podman("network", "rm", f"{PROJECT}_default")  # which this podman-compose leaves
    assert not remains()


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    """Signed in with the link that stands in the log, which works once."""

    def link() -> re.Match[str] | None:
        return re.search(r"is at (http://localhost:\d+)/#once=(\S+)", podman("logs", f"{PROJECT}_backend_1"))

    found = until(link, "the link in the log")
    assert found[1] == address
    with httpx.Client(base_url=address, timeout=20, trust_env=False) as signed_in:
        answer = signed_in.post("/api/session", json={"once": found[2]})
        signed_in.headers["X-Penstock-Page"] = answer.json()["page"]
        yield signed_in


def batches(client: httpx.Client) -> dict[str, float]:
    """Rank → batches that it yielded."""
    pattern = r'(?m)^penstock_loader_batches_total\{.*rank="(\d+)".*\} (\S+)$'
    return {rank: float(number) for rank, number in re.findall(pattern, client.get("/metrics").text)}


def test_two_ranks_report_and_their_numbers_grow(client: httpx.Client) -> None:
    first = until(lambda: found if len(found := batches(client)) == 2 else None, "both ranks")
    until(lambda: all(number > first[rank] for rank, number in batches(client).items()), "more batches on both")


def test_a_resize_of_the_run_is_applied_on_both_ranks(client: httpx.Client) -> None:
    answer = client.post("/api/runs/compose/commands", json={"action": "resize", "workers": 4})
    assert len(answer.json()["commands"]) == 2, answer.text

    def applied() -> bool:
        states = [client.get(f"/api/commands/{command['id']}").json() for command in answer.json()["commands"]]
        return [(state["state"], state["actual"]) for state in states] == [("applied", 4)] * 2

    until(applied, "both outcomes")


@pytest.mark.parametrize("service", ["backend", "training"])
def test_health_and_hardening_hold_in_the_running_container(client: httpx.Client, service: str) -> None:
    name = f"{PROJECT}_{service}_1"
    check = ["podman", "healthcheck", "run", name]
    until(lambda: subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0, "health")
    assert client.get("/healthz").is_success
    inside = podman("exec", name, "sh", "-c", "id -u; grep CapEff /proc/1/status; touch /opt/x 2>&1; df -k /dev/shm")
    user, capabilities, refusal, *shm = inside.splitlines()
    assert user != "0"
    assert int(capabilities.split()[1], 16) == 0
    assert "Read-only" in refusal
    assert int(shm[-1].split()[1]) <= 64 << 10, "a 64 MB /dev/shm is enough"
