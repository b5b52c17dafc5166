"""A wheel built from an sdist, as it is published, and environments to install it into.

The environments are empty but for a path to the packages that the wheel depends on: to install torch once more would
take minutes and prove nothing about us.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from penstock import __version__

ROOT = Path(__file__).parents[2]


def run(command: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    """What a program prints that is expected to succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Environment:
    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self._folder = folder
        self.python = folder / "bin" / "python"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "pip", "--python", self.python, "-q", *arguments]
        run(
            command,
            self._folder,
            {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"},
        )

    def run(self, program: str, *arguments: str) -> str:
        """A program of this environment, in a shell that has nothing else on its PATH: no Node, for one."""
        return run([self.python.parent / program, *arguments], self._folder, {"PATH": str(self.python.parent)})


@dataclass(frozen=True)
class Distribution:
    wheel: Path
    unpacked: Path
    """The sdist, in which the wheel was built."""

    def install(self, folder: Path) -> Environment:
        environment = Environment(folder)
        environment.pip("install", "--no-deps", "--no-index", self.wheel)
        return environment


def build(target: str, source: Path, into: Path, **environment: str) -> Path:
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into]
    run(command, source, environment)
    (made,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    folder = tmp_path_factory.mktemp("distribution")
    sdist = build("sdist", ROOT, folder, **os.environ)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"penstock-{__version__}"
    return Distribution(build("wheel", unpacked, folder, PATH=""), unpacked)
