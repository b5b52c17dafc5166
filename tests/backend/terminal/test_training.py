"""The keys over a real training process with a real pool."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.backend.harness import ROOT, SECRETS, Running, until
from tests.backend.terminal.conftest import Call
from tests.backend.terminal.screen import screen
from tests.loader.profiling.test_formats import check_speedscope

SCRIPT = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9)
import torch
from penstock import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64_000
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), float(index))

train = DataLoader(Slow(), batch_size=16, num_workers=2, max_workers=6, name="train")
for batch in train:
    time.sleep(0.002)
"""
LOADER = "trained:0:train"


@contextlib.contextmanager
def training(server: Running) -> Iterator[subprocess.Popen[bytes]]:
    where = {"PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": SECRETS["local"], "PENSTOCK_RUN": "trained"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=ROOT, env={**os.environ, **where})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def living(server: Running) -> int:
    """Workers of the loader that are processes of this machine now."""
    snapshot = server.get(f"/api/loaders/{LOADER}")["snapshot"]
    pids = [worker["pid"] for worker in snapshot["workers"] if worker["state"] != "dead"]
    return sum(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_real_pool_is_resized_and_paused(server: Running) -> None:
    with training(server):
        until(lambda: any(row["id"] == LOADER and row["workers"] for row in server.get("/api/loaders")), "training")
        with screen("top", "trained", PENSTOCK_URL=server.url, PENSTOCK_TOKEN=SECRETS["local"]) as shown:
            shown.shows("Data-bound|Partly data-bound|Compute-bound")
            shown.press("++\r")
            shown.shows(r"Applied: 2 → 4 workers at batch [\d,]+ after")
            until(lambda: living(server) == 4, "four worker processes")
            shown.press("p")
            shown.shows("Applied: pause at batch")
            shown.shows(r"(?m)^paused ")
            shown.press("p")
            shown.shows("Applied: resume at batch")
            shown.shows(r"(?m)^running ")


def test_a_real_pool_is_profiled_from_the_terminal(server: Running, call: Call, tmp_path: Path) -> None:
    with training(server):
        until(lambda: any(row["id"] == LOADER and row["workers"] for row in server.get("/api/loaders")), "training")
        assert call("profile", "trained/train", "-o", "x.svg")[:2] == (1, "")
        file = tmp_path / "x.speedscope.json"
        status, out, err = call("profile", "trained/train", "--seconds", "2", "--rate", "100", "-o", str(file))
        assert (status, err) == (0, "")
        assert "profile of 2 s, applied" in out
        assert "Slow.__getitem__" in out
        document = json.loads(file.read_bytes())
        check_speedscope(document)
        assert "Slow.__getitem__" in {frame["name"] for frame in document["shared"]["frames"]}
        stored = server.get(f"/api/loaders/{LOADER}/events", kind="profile")
        assert stored[-1]["event"]["ended"]
        assert sum(len(json.dumps(each["event"])) for each in stored) < 60_000
