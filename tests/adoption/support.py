"""Running a training of somebody else's framework to its end."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def needs(package: str) -> pytest.MarkDecorator:
    """`make test` installs them; elsewhere they may be missing."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def run(*arguments: str, folder: Path, timeout: float = 100) -> str:
    """Run Python with these arguments, in a session of its own that is ended; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return said
