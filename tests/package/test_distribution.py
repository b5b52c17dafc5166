"""What is published: an sdist that builds the wheel by itself, and a wheel that needs neither Node nor this folder."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
import zipfile
from pathlib import Path

import pytest
from penstock import __version__

from tests.package.conftest import Distribution, Environment

TRAINING = """
import pathlib, torch, loader, penstock, penstock_dashboard
from torch.utils.data import TensorDataset
train = loader.DataLoader(TensorDataset(torch.arange(10)), num_workers=1)
print(sum(int(batch) for (batch,) in train))
for package in (penstock, penstock_dashboard):
    print(pathlib.Path(package.__file__).parent, (pathlib.Path(package.__file__).parent / "py.typed").exists())
"""


@pytest.fixture(scope="module")
def installed(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return distribution.install(tmp_path_factory.mktemp("installed") / "venv")


def test_the_sdist_builds_the_wheel_without_node(distribution: Distribution) -> None:
    assert not (distribution.unpacked / "frontend" / "node_modules").exists(), "the pages were built again"
    with zipfile.ZipFile(distribution.wheel) as archive:
        names = archive.namelist()
    assert "penstock_dashboard/static/index.html" in names
    assert any(re.fullmatch(r"penstock_dashboard/static/assets/[^/]+\.js", name) for name in names)
    assert {"penstock/py.typed", "penstock_dashboard/py.typed"} <= set(names)
    ours = {"loader.py", "penstock", "penstock_dashboard", f"penstock-{__version__}.dist-info"}
    assert {name.split("/")[0] for name in names} == ours


def test_the_wheel_trains_and_brings_its_types(installed: Environment) -> None:
    total, *packages = installed.run("python", "-c", TRAINING).splitlines()
    assert int(total) == sum(range(10))
    home = str(installed.python.parents[1])
    assert [(place.startswith(home), typed) for place, typed in map(str.split, packages)] == [(True, "True")] * 2


def test_the_command_says_its_version(installed: Environment) -> None:
    assert installed.run("penstock", "--version").strip() == f"penstock {__version__}"


def test_the_command_serves_the_frontend(installed: Environment, tmp_path: Path) -> None:
    with subprocess.Popen(
        [installed.python.parent / "penstock", "dashboard", "--port", "0", "--data", ":memory:"],
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
