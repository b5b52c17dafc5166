"""`penstock run`: the program is as if Python had been called, and every loader below it is ours."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adoption.support import ROOT, needs

SHOW = """
import json, os, signal, sys
import sitecustomize
print(json.dumps([sys.argv, __name__, sys.path[0], sys.path[1:], sitecustomize.__file__, sys.flags.interactive,
                  [name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy", "msgspec")],
                  __spec__ and __spec__.name, sys.orig_argv[0]]))
sys.stdout.flush()
if sys.argv[1] == "raise":
    {}["missing"]
if sys.argv[1] == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(int(sys.argv[1]))
"""

TRAIN = """
import json, subprocess, sys, time, urllib.request
import torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset
import torch

dataset = TensorDataset(torch.arange(8))

def child(rank, kept):
    assert len(list(kept)) == 2
    eval_loader = DataLoader(dataset, batch_size=4)
    list(eval_loader)
    found({"train", "eval"})

def found(names):
    from penstock import discovery
    while (dashboard := discovery.read()) is None:
        time.sleep(0.05)
    while True:
        token = {"Authorization": "Bearer " + dashboard.token}
        rows = json.load(urllib.request.urlopen(urllib.request.Request(dashboard.url + "/api/loaders", headers=token)))
        if {row["identity"]["name"] for row in rows} >= names:
            return rows
        time.sleep(0.05)

if __name__ == "__main__":
    train_loader = DataLoader(dataset, batch_size=4, num_workers=1)
    assert len(list(train_loader)) == 2
    torch.multiprocessing.start_processes(child, (train_loader,), start_method="spawn")
    code = "import torch; loader = torch.utils.data.DataLoader([1]); print(hasattr(loader, 'resize'))"
    adopted = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    rows = found({"train", "eval"})
    print(json.dumps([rows, adopted]))
"""

TUNED = """
import os
os.environ["PENSTOCK_AUTO"] += ",no-dashboard"
from torch.utils.data import DataLoader
given = {'num_workers': 1}, {}, {'num_workers': 1, 'allow_control': False}
loaders = [DataLoader(range(8), **options) for options in given]
for loader in loaders:
    for _ in loader:
        pass
print([loader.stats().tuned is not None for loader in loaders])
"""

LAUNCHED = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
if sys.argv[1] == "accelerate":
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
val_loader = DataLoader(TensorDataset(torch.arange(16)), batch_size=2, num_workers=1)
if sys.argv[1] == "accelerate":
    val_loader = accelerator.prepare(val_loader)
seen = [number for (batch,) in val_loader for number in batch.tolist()]
rank = os.environ.get("RANK", "0")
with open(f"{rank}.json", "w") as file:
    json.dump([val_loader.name, seen, val_loader.stats().batches], file)
"""


def penstock(*arguments: str, folder: Path, python: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    """`penstock run ARGUMENTS`, or `python ARGUMENTS` for comparison."""
    command = (
        [sys.executable, *arguments] if python else [sys.executable, "-m", "penstock_dashboard", "run", *arguments]
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment |= {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": "", "PYTHONPATH": str(folder / "site")}
    return subprocess.run(
        command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False, timeout=150
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a program, and with a `sitecustomize` of the user's own."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("")
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launched.py").write_text(LAUNCHED)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [("show.py", "3", "--help", "-m"), ("-m", "show", "0", "x"), ("show.py", "raise"), ("show.py", "signal")],
)
def test_a_program_sees_what_it_sees_without_us(project: Path, arguments: tuple[str, ...]) -> None:
    """Arguments, paths, main module, the user's sitecustomize, tracebacks, exit status; and nothing heavy is loaded."""
    plain = penstock(*arguments, folder=project, python=True)
    adopted = penstock(*arguments, folder=project)
    assert plain.stdout, plain.stderr
    assert (adopted.stdout, adopted.stderr, adopted.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_commands_are_found_and_what_is_not_is_said(project: Path) -> None:
    script = project / "script.sh"
    script.write_text(f"#!/bin/sh\necho $PENSTOCK_AUTO; exec {sys.executable} -c 'import sys; print(sys.argv)' \"$@\"")
    script.chmod(0o755)
    done = penstock("--no-dashboard", "--read-only", "./script.sh", "--flag", folder=project)
    assert (done.stdout, done.returncode) == ("on,no-dashboard,read-only\n['-c', '--flag']\n", 0), done.stderr
    beside = penstock("python", "-c", "import sys; print(sys.executable)", folder=project, PATH="/bin")
    assert beside.stdout.strip() == sys.executable
    tuned = penstock("--autotune", "python", "-c", TUNED, folder=project, PYTHONPATH=str(ROOT))
    assert (tuned.stdout, tuned.returncode) == ("[True, False, False]\n", 0), tuned.stderr
    both = penstock("--autotune", "--read-only", "show.py", "0", folder=project)
    assert (both.returncode, "not allowed with" in both.stderr) == (2, True)
    missing = penstock("no-such-command", folder=project)
    assert (missing.returncode, missing.stderr) == (127, "penstock run: no-such-command: No such file or directory\n")
    assert penstock(folder=project).returncode == 2
    assert "script.py" in penstock("--help", folder=project).stdout


def test_a_training_and_its_children_are_on_a_dashboard_that_was_started_for_them(project: Path) -> None:
    try:
        done = penstock("--read-only", "train.py", folder=project, PYTHONPATH=f"{project / 'site'}:{ROOT}")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.kill(json.loads((project / "penstock" / "dashboard.json").read_text())["pid"], signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    rows, adopted = json.loads(done.stdout)
    assert adopted == "True"
    assert {row["identity"]["name"] for row in rows} == {"train", "eval"}
    assert all(row["identity"]["run"].startswith("train-") for row in rows)
    assert not any(row["control"] for row in rows)
    assert "Penstock is at http://" in done.stderr


TORCHRUN = ("torchrun", "--nproc-per-node", "2", "--standalone", "launched.py", "torchrun")
LAUNCH = ("accelerate", "launch", "--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no",
          "--dynamo_backend", "no", "launched.py", "accelerate")  # fmt: skip
"""One rank: without a GPU it starts more only by MPI."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command", [pytest.param(TORCHRUN, id="torchrun"), pytest.param(LAUNCH, id="launch", marks=needs("accelerate"))]
)
def test_ranks_that_a_launcher_starts_are_ours(project: Path, command: tuple[str, ...]) -> None:
    path = f"{project / 'site'}:{ROOT}"
    done = penstock("--no-dashboard", *command, folder=project, PYTHONPATH=path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    for rank in range(2 if command is TORCHRUN else 1):
        assert json.loads((project / f"{rank}.json").read_text()) == ["val", [*range(16)], 8]
