"""Ranks of one machine, each a process: those that see each other are tuned together, and those that share nothing, as
containers with folders of their own, each for itself; both say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import select, sys, time
from penstock import DataLoader
from tests.loader.support import Samples

class Slow(Samples):
    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)

if __name__ == "__main__":
    expected, told = sys.argv[1], False
    with DataLoader(Slow("int", 10**6), 4, num_workers=1, autotune=True, monitor=False) as train:
        for number, _ in enumerate(train):
            tuned = train.stats().tuned if number % 10 == 0 else None
            if not told and tuned is not None and expected in tuned.text:
                told = True
                print(tuned.ranks, tuned.text, flush=True)
            if told and select.select([sys.stdin], [], [], 0)[0]:  # both have told
                break
"""
ALONE = ", for itself: no other rank is seen on this host"
TOGETHER = ", together with 1 more on this host"


@pytest.mark.parametrize(("apart", "expected", "ranks"), [(True, ALONE, "1"), (False, TOGETHER, "2")])
def test_ranks_that_share_nothing_are_tuned_each_for_itself(
    tmp_path: Path, apart: bool, expected: str, ranks: str
) -> None:
    children = []
    try:
        for rank in range(2):
            folder = tmp_path / (str(rank) if apart else "shared")
            folder.mkdir(exist_ok=True)
            more = {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": "", "RANK": str(rank), "WORLD_SIZE": "2"}
            children.append(
                subprocess.Popen(
                    [sys.executable, "-c", SCRIPT, expected],
                    cwd=ROOT,
                    env={**os.environ, **more},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for child in children:
            assert child.stdout is not None
            number, _, text = child.stdout.readline().partition(" ")
            assert (number, expected in text) == (ranks, True), text
        for child in children:
            child.communicate(timeout=PATIENCE)
            assert child.returncode == 0
    finally:
        for child in children:
            child.kill()
            child.wait()
