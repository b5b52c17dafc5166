"""What is published: an sdist that builds the wheel by itself, and a wheel that needs neither Node nor this folder.

The environment into which the wheel is installed is empty but for a path to the packages that it depends on: to
install torch once more would take minutes and prove nothing about us.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from loader import __version__

ROOT = Path(__file__).parents[2]

TRAINING = """
import pathlib, torch, loader, backend
from torch.utils.data import TensorDataset
train = loader.DataLoader(TensorDataset(torch.arange(10)), num_workers=1)
print(sum(int(batch) for (batch,) in train))
for package in (loader, backend):
    print(pathlib.Path(package.__file__).parent, (pathlib.Path(package.__file__).parent / "py.typed").exists())
"""


@dataclass(frozen=True)
class Distribution:
    sdist: Path
    wheel: Path
    unpacked: Path
    """The sdist, in which the wheel was built."""
    python: Path
    """Of the environment in which the wheel is installed."""

    def run(self, *arguments: str, **more: str) -> str:
        """Something of that environment, run in a shell that has nothing else on its PATH: no Node, for one."""
        program = self.python.parent / arguments[0]
        done = subprocess.run(
            [program, *arguments[1:]],
            cwd=self.unpacked.parent,
            env={"PATH": str(self.python.parent), **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def build(target: str, source: Path, into: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    folder = tmp_path_factory.mktemp("distribution")
    sdist = build("sdist", ROOT, folder, **os.environ)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"penstock-{__version__}"
    wheel = build("wheel", unpacked, folder, PATH="")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel],
        check=True,
        capture_output=True,
        timeout=100,
    )
    return Distribution(sdist, wheel, unpacked, python)


def test_the_sdist_builds_the_wheel_without_node(distribution: Distribution) -> None:
    assert not (distribution.unpacked / "frontend" / "node_modules").exists(), "the pages were built again"
    with zipfile.ZipFile(distribution.wheel) as archive:
        names = archive.namelist()
    assert "backend/static/index.html" in names
    assert any(re.fullmatch(r"backend/static/assets/[^/]+\.js", name) for name in names)
    assert {"loader/py.typed", "backend/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"loader", "backend", f"penstock-{__version__}.dist-info"}


def test_the_wheel_trains_and_brings_its_types(distribution: Distribution) -> None:
    total, *packages = distribution.run("python", "-c", TRAINING).splitlines()
    assert int(total) == sum(range(10))
    home = str(distribution.python.parents[1])
    assert [(place.startswith(home), typed) for place, typed in map(str.split, packages)] == [(True, "True")] * 2


def test_the_command_says_its_version(distribution: Distribution) -> None:
    assert distribution.run("penstock", "--version").strip() == f"penstock {__version__}"


def test_the_command_serves_the_frontend(distribution: Distribution, tmp_path: Path) -> None:
    with subprocess.Popen(
        [distribution.python.parent / "penstock", "dashboard", "--port", "0", "--data", ":memory:"],
        env={"PATH": "", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            base = process.stdout.readline().split()[-1].partition("/#")[0]
            page = read(f"{base}/")
            assert "<title>" in page
            script = re.search(r'src="\./(assets/[^"]+\.js)"', page)
            assert script is not None, page
            assert len(read(f"{base}/{script[1]}")) > 10_000
        finally:
            process.send_signal(signal.SIGTERM)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text
