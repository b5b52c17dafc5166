"""The keys over a real training process with a real pool."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.backend.harness import ROOT, SECRETS, Running, until
from tests.backend.terminal.screen import screen

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
    pids = [worker[1] for worker in snapshot["workers"] if worker[2] != "dead"]
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
