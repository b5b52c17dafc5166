"""Users' projects have a `loader` and a `backend` of their own: ours stand beside them, and neither harms the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.package.conftest import Distribution, Environment, run

WRONG = "raise SystemExit('the wrong module was imported: ' + __file__)"

TRAINING = """
import sys
import torch
from penstock import DataLoader
from torch.utils.data import TensorDataset

if __name__ == "__main__":
    dataset = TensorDataset(torch.arange(10))
    train = DataLoader(dataset, num_workers=2, multiprocessing_context=sys.argv[1], monitor=sys.argv[2] == "True")
    print(sum(int(batch) for (batch,) in train))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which every name that we once had means something else."""
    for name in ("loader.py", "backend.py", "loader/__init__.py", "backend/__init__.py", "data/loader.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(WRONG)
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ["beside the script", "PYTHONPATH=.", "sys.path.insert"])
def test_a_project_with_modules_of_the_same_names_trains(project: Path, method: str, how: str) -> None:
    environment = dict(os.environ)
    if how == "PYTHONPATH=.":
        environment["PYTHONPATH"] = "."
    elif how == "sys.path.insert":
        script = project / "train.py"
        script.write_text("import sys\nsys.path.insert(0, 'data')\n" + script.read_text())
    assert run([sys.executable, "train.py", method, "False"], project, environment).strip() == "45"


def test_a_dashboard_is_started_from_such_a_project(project: Path) -> None:
    """And found by the `penstock` command there."""
    environment = {**os.environ, "PYTHONPATH": ".", "XDG_STATE_HOME": str(project / "state"), "XDG_RUNTIME_DIR": ""}
    script = project / "train.py"
    waiting = """
        import time
        from penstock import discovery
        while discovery.read() is None:
            time.sleep(0.05)
        print(discovery.read().pid)
    """
    script.write_text(script.read_text() + textwrap.indent(textwrap.dedent(waiting), "    "))
    total, pid = run([sys.executable, "train.py", "fork", "True"], project, environment).split()
    try:
        assert total == "45"
        listed = json.loads(run([Path(sys.executable).with_name("penstock"), "status", "--json"], project, environment))
        assert len(listed["loaders"]) == 1
    finally:
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("module", ["loader", "penstock_dashboard"])
def test_a_file_that_stands_in_our_place_is_named(tmp_path: Path, module: str) -> None:
    (tmp_path / "penstock.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{tmp_path / 'penstock.py'} is found under the name penstock" in done.stderr


def test_the_alias_has_the_public_names_and_no_module_of_its_own() -> None:
    import penstock

    import loader

    assert {*penstock.__all__} <= {*dir(loader)}
    assert all(getattr(loader, name) is getattr(penstock, name) for name in penstock.__all__)
    assert not hasattr(loader, "__path__")


USE = """
import loader, backend, penstock, penstock_dashboard.cli
print(loader.MINE, backend.MINE, penstock.DataLoader.__module__)
"""

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "theirs"
version = "1"
[tool.hatch.build]
dev-mode-dirs = ["."]
[tool.hatch.build.targets.wheel]
packages = ["loader", "backend"]
"""


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_a_package_with_the_same_names_can_be_installed_and_removed(
    distribution: Distribution, tmp_path: Path, first: str, editable: bool
) -> None:
    for name in ("loader", "backend"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    theirs: list[str | Path] = ["install", "--no-deps", "--no-build-isolation", *(["-e"] if editable else []), tmp_path]
    ours: list[str | Path] = ["install", "--no-deps", "--no-index", distribution.wheel]
    environment = Environment(tmp_path / "venv")
    for arguments in (theirs, ours) if first == "theirs" else (ours, theirs):
        environment.pip(*arguments)
    assert environment.run("python", "-c", USE).split() == ["True", "True", "penstock.dataloader"]
    environment.pip("uninstall", "-y", "penstock")
    assert (
        environment.run("python", "-c", "import loader, backend; print(loader.MINE and backend.MINE)").strip() == "True"
    )
    environment.pip(*ours)
    environment.pip("uninstall", "-y", "theirs")
    said = environment.run(
        "python", "-c", "import loader, penstock; print(loader.__file__, loader.DataLoader is penstock.DataLoader)"
    )
    assert said.split() == [str(environment.packages / "loader.py"), "True"]
