"""Runs rounds: each in a process of its own, bounded in time, the variants taking turns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.apart import APART
from tests.benchmarks.case import Case, Measures

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Round:
    case: str
    variant: str
    number: int
    measures: Measures | None
    error: str | None
    """Why there are no measures."""
    load: float
    """Processes that wanted a core in the minute before: rounds with a higher load than others say less."""


def take_turns(case: Case, variants: tuple[str, ...], rounds: int, quick: bool) -> Iterator[Round]:
    """A B C, A B C, …: noise that comes and goes hits all of them alike."""
    for number in range(rounds):
        for variant in variants:
            yield run_round(case, variant, number, quick)


def run_round(case: Case, variant: str, number: int, quick: bool) -> Round:
    arguments = ["--case", case.name, "--variant", variant, *(["--quick"] if quick else [])]
    load = os.getloadavg()[0]
    answer, error = run_child(arguments, case.timeout, APART if case.on_ray else ())
    return Round(case.name, variant, number, answer, error, load)


def run_child(
    arguments: list[str], timeout: float, prefix: tuple[str, ...] = ()
) -> tuple[dict[str, float] | None, str | None]:
    """(answer, None) or (None, why not). `prefix`: what starts Python."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        answer, errors = Path(folder) / "answer.json", Path(folder) / "stderr"
        command = [*prefix, sys.executable, "-m", "tests.benchmarks.round", "--answer", str(answer), *arguments]
        environment = {**os.environ, "RAY_TMPDIR": folder}
        with errors.open("wb") as stderr:
            # A session of its own, so that a hanging round is killed together with its workers.
            child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )
            try:
                code = child.wait(timeout)
            except subprocess.TimeoutExpired:
                return None, f"killed after {timeout:g} s"
            finally:
                kill_session(child)
        if code == 0 and answer.exists():
            return json.loads(answer.read_text()), None
        lines = errors.read_text(errors="replace").strip().splitlines()
        return None, (lines[-1] if lines else f"exit code {code}")


def kill_session(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
