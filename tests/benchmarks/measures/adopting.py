"""What `penstock run` adds to the start of a program that does not know of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.case import Measures

PROGRAM = """
import torch
from torch.utils.data import DataLoader

def main():
    train_loader = DataLoader(torch.arange(256), batch_size=8, num_workers=2)
    for batch in train_loader:
        print("here", flush=True)
        break

main()
"""

PATIENCE = 60.0
"""Seconds after which a program that should have ended is."""


def measure(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    """From the command to the program's first batch, with `penstock run` and without, in turn; the best of each."""
    alone, run = [], []
    with TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(PROGRAM)
        penstock = str(Path(sys.executable).with_name("penstock"))
        for _ in range(3 if quick else 8):
            alone.append(_first_batch([sys.executable, str(script)]))
            run.append(_first_batch([penstock, "run", "--no-dashboard", str(script)]))
    return {"first_batch_s": min(run), "more_s": min(run) - min(alone)}


def _first_batch(command: list[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said = process.stdout.readline() if process.stdout is not None else ""
            seconds = time.perf_counter() - start
            status = process.wait(PATIENCE)
        finally:
            process.kill()
    if said != "here\n" or status:
        raise RuntimeError(f"{command} said {said!r} and ended with {status}")
    return seconds
