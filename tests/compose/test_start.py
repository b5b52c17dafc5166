"""The scripts in docker-compose.yml, run by a real shell with the real `penstock`, in folders instead of volumes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from penstock_dashboard.security.tokens import load

from tests.backend.harness import die_with_parent, environment, until
from tests.compose.files import script
from tests.patience import PATIENCE


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for place in ("data", "tokens/training", "tokens/monitoring"):
        (tmp_path / place).mkdir(parents=True)
    return tmp_path


def shell(service: str, volumes: Path, *changes: tuple[str, str], **more: str) -> subprocess.Popen[str]:
    text = re.sub(r"(?<!\w)/(data|tokens)\b", rf"{volumes}/\1", script(service))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    ours = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["sh", "-euc", text],
        env={**environment(volumes), "PATH": ours, "PENSTOCK_PORT": "1234", **more},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  no threads here
    )


@contextlib.contextmanager
def backend(volumes: Path, port: int, **more: str) -> Iterator[str]:
    """The backend as compose starts it, on loopback; gives the link that it prints."""
    process = shell("backend", volumes, ("--host 0.0.0.0", f"--host 127.0.0.1 --port {port}"), **more)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rpartition(" ")[2]
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.communicate()


@pytest.fixture
def port() -> int:
    """A port that is free now: the script's dashboard cannot say which one it took, for its link names compose's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def secret(volumes: Path, name: str) -> str:
    return (volumes / "tokens" / name / "token").read_text().strip()


def test_tokens_are_made_once_with_the_scopes_that_their_holders_need(volumes: Path, port: int) -> None:
    (volumes / "tokens" / "training" / "token").write_text("of a database that was removed\n")
    with backend(volumes, port) as link:
        assert link.startswith("http://localhost:1234/#once="), "the address on the host"
        tokens = {token.token: token for token in load(volumes / "data" / "tokens.json").tokens}
        first = secret(volumes, "training"), secret(volumes, "monitoring")
        assert [tokens[each].scopes for each in first] == [("publish",), ("view",)]
        address = f"http://127.0.0.1:{port}/metrics"
        assert httpx.get(address, headers={"Authorization": f"Bearer {first[1]}", "Host": "backend:8787"}).is_success
        assert httpx.get(address, headers={"Authorization": f"Bearer {first[0]}"}).status_code == 403
    with backend(volumes, port, PENSTOCK_TOKEN="my-own") as link:
        assert "my-own" not in link, "what is printed has no token in it"
        mine = {"Authorization": "Bearer my-own", "Host": "backend:8787"}
        assert httpx.get(f"http://127.0.0.1:{port}/api/session", headers=mine).is_success
        assert (secret(volumes, "training"), secret(volumes, "monitoring")) == first, "a restart keeps them"
        assert "my-own" not in (volumes / "data" / "tokens.json").read_text()


def test_training_waits_for_its_token(volumes: Path) -> None:
    [command] = [line for line in script("training").splitlines() if line.startswith("exec ")]
    process = shell("training", volumes, (command, "exec printenv PENSTOCK_TOKEN"))
    try:
        waits = until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().strip())
        assert waits, "it sleeps between two looks"
        assert process.poll() is None
        (volumes / "tokens" / "training" / "token").write_text("late\n")
        assert process.communicate(timeout=PATIENCE)[0] == "late\n"
    finally:
        process.kill()
        process.communicate()
