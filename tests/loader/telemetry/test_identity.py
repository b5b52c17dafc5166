from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch.distributed
from penstock.protocol import Identity
from penstock.telemetry import identity
from penstock.telemetry.identity import make_identity, rank_and_world_size, run_id

from tests.loader.support import ROOT
from tests.loader.telemetry.sources import CountingSource


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_run", None)
    monkeypatch.setattr(identity, "_names", {})
    for variable in ("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)


def test_the_run_is_what_the_user_says_else_the_launcher_else_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = run_id()
    assert re.fullmatch(r"[\w.-]+-\d{8}-\d{6}-[0-9a-f]{4}", generated)
    assert run_id() == generated  # the same for all loaders of one process
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert run_id() == generated
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7/b")
    assert run_id() == "job-7-b"
    monkeypatch.setenv("PENSTOCK_RUN", "mine")
    assert run_id() == "mine"


def test_rank_and_world_size_come_from_torch_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_and_world_size() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_and_world_size() == (3, 8)
    monkeypatch.setenv("RANK", "nonsense")
    assert rank_and_world_size() == (0, 8)
    monkeypatch.setenv("RANK", "9")
    assert rank_and_world_size() == (0, 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 6)
    assert rank_and_world_size() == (5, 6)


RANK = "from penstock.telemetry.identity import *; from penstock.telemetry.identity import run_id; print(run_id(2))"


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_of_one_launch_agree_on_a_run_without_asking_each_other(nodes: int) -> None:
    environment = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(2 // nodes)}
    environment |= {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    runs = set()
    for rank in range(2):
        script = [sys.executable, "-c", RANK]
        done = subprocess.run(
            script, cwd=ROOT, env={**environment, "RANK": str(rank)}, timeout=30, capture_output=True, check=True
        )
        runs.add(done.stdout.decode().strip())
    assert len(runs) == 1 and re.fullmatch(r"python(-\d{8}-\d{6})?-[0-9a-f]{4}", runs.pop())


def test_every_incarnation_is_valid_and_new() -> None:
    made = [make_identity(CountingSource("a name / with anything in it" * 5)) for _ in range(2)]
    for each in made:
        decoded: Identity = msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Identity)
        assert decoded == each and each.pid == os.getpid() and each.host
    assert made[0].incarnation != made[1].incarnation


def test_loaders_of_one_name_are_told_apart_while_both_are_there() -> None:
    sources = [CountingSource("train") for _ in range(3)]
    assert [make_identity(source).name for source in sources] == ["train", "train-2", "train-3"]
    sources[1].gone = True
    assert make_identity(again := CountingSource("train")).name == "train-2"
    del sources
    assert make_identity(CountingSource("train")).name == "train"
    assert not again.gone
    long = [CountingSource("x" * 64) for _ in range(2)]
    names = [make_identity(source).name for source in long]
    assert len(set(names)) == 2 and all(len(name) <= 64 for name in names)


def test_a_forked_process_has_names_of_its_own() -> None:
    source: Any = CountingSource("train")
    make_identity(source)
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(far, make_identity(CountingSource("train")).name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(far)
    assert os.read(near, 100) == b"train"
    os.close(near)
