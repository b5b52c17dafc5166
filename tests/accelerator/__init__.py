"""A test accelerator: pinning as beside a GPU, on a machine without one.

`accelerator.cpp` gives torch two devices that compute nothing and an allocator of pinned host memory. `library()`
builds it, once for this environment. `install()` makes it the accelerator of this process, which cannot be undone: so
tests call it in processes of their own.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

NAME = "pretend"
"""What torch calls its devices."""
DEVICES = 2
SOURCE = Path(__file__).with_name("accelerator.cpp")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 200
"""Seconds that building may take: a few on an idle machine, not so on a busy one."""


class CannotBuildError(Exception):
    """This machine lacks something that is needed to build it."""


def library() -> Path:
    """The library, built if it is not there yet. Raises CannotBuildError where there is no compiler."""
    path = _path()
    if path.exists():
        return path
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for tool, name in (("compiler", os.environ.get("CXX", "c++")), ("ninja", "ninja")):
        if shutil.which(name, path=tools) is None:
            raise CannotBuildError(f"the test accelerator cannot be built: there is no {tool} ({name})")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise CannotBuildError(f"the test accelerator cannot be built: {error}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it, however this process ends
        if not path.exists():
            # Elsewhere, and moved when it is done: what was killed on the way is in nobody's way.
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                _build(Path(folder), tools)
                (Path(folder) / "accelerator.so").replace(path)
    return path


def install() -> None:
    """Make it the accelerator of this process."""
    torch.ops.load_library(str(library()))
    rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.__dict__.update(
        is_available=lambda: True,
        device_count=lambda: DEVICES,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _: None,  # nothing in it draws
    )
    torch._register_device_module(NAME, module)


def blocks_made() -> int:
    """Blocks of pinned memory that there are in this process, in use or kept for the next tensor."""
    return int(ctypes.CDLL(str(_path())).blocks_made())


def times_pinned() -> int:
    """How often a block was handed out in this process."""
    return int(ctypes.CDLL(str(_path())).times_pinned())


def _path() -> Path:
    """In the environment that has the torch it is built for: `make clean` removes both."""
    made_of = [SOURCE.read_text(), torch.__version__, str(torch.version.git_version), str(sys.implementation.cache_tag)]
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "penstock-test-accelerator" / f"{key}.so"


def _build(folder: Path, tools: str) -> None:
    command = [sys.executable, "-m", "tests.accelerator.build", str(folder)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": tools},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the compiler
    if process.returncode:
        raise RuntimeError(f"the test accelerator does not build:\n{said}")
