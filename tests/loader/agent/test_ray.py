"""Workers that Ray places: `on_ray` in a network namespace that has nothing but `lo`.

Ray listens on all interfaces, so that it must not run where others could reach it. It is one test, so that there is one
cluster, however many processes share the tests.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loader.support import ROOT

APART = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "apart")
"""Runs what follows in a network namespace of its own."""


def may_be_apart() -> bool:
    try:
        return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_workers_that_ray_places(tmp_path: Path) -> None:
    if not may_be_apart():
        pytest.skip("only root may make a network namespace, and Ray must not be reached from outside")
    command = [*APART, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/loader/agent/on_ray.py"]
    said = (tmp_path / "said").open("w+")
    with said, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=ROOT) as inner:
        failed = inner.wait()
        said.seek(0)
        assert not failed, said.read()
