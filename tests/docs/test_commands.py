"""Every command in the documents works: it is run, or checked against the program that would take it.

A command that the table below does not know fails the test: teach it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock import DataLoader, discovery

from tests.backend.harness import dashboard, environment
from tests.docs.commands import Command, commands
from tests.docs.markdown import ROOT, blocks
from tests.loader.support import Samples, wait_until
from tests.patience import PATIENCE

COMMANDS = commands()


class Accepted(Exception):
    """The program's own parser has taken the arguments."""


@pytest.fixture
def stop_after_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, *arguments: Any) -> None:
        parse(self, *arguments)
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)


def takes(module: str, arguments: list[str]) -> None:
    """`python -m module` accepts these arguments; it is not run any further."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Accepted):
        patch.setattr(sys, "argv", [module, *arguments])
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def check_make(command: Command) -> None:
    done = subprocess.run(["make", "-n", *command.arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    settings = dict(word.split("=", 1) for word in command.arguments if "=" in word)
    for words in settings.values():
        for word in words.split():
            assert not word.endswith(".py") or (ROOT / word).exists(), f"there is no {word}"


def check_penstock(command: Command) -> None:
    arguments = [word for word in command.arguments if word != "--help"]
    if arguments[-1] == "--frame-ancestor":
        arguments.append("http://localhost")  # talked about without its value
    takes("penstock_dashboard", ["tokens", "list"] if arguments == ["tokens"] else arguments)


def check_python(command: Command) -> None:
    if command.words[1] == "-m":
        takes(command.words[2], list(command.words[3:]))
    else:
        folder = ROOT / command.document
        assert (ROOT / command.words[1]).exists() or (folder.parent / command.words[1]).exists()


def check_torchrun(command: Command) -> None:
    module = command.words.index("-m")
    assert importlib.util.find_spec("torch.distributed.run") is not None
    assert all(word in ("--nproc-per-node", "2") for word in command.words[1:module])
    takes(command.words[module + 1], list(command.words[module + 2 :]))


def check_npm(command: Command) -> None:
    scripts = json.loads((ROOT / "frontend/package.json").read_text())["scripts"]
    if command.words[1] == "ci":
        assert (ROOT / "frontend/package-lock.json").exists()
    else:
        assert command.words[-1] in scripts


def check_pip(command: Command) -> None:
    assert command.words[1] == "install"
    for wanted in command.words[2:]:
        name, _, extras = wanted.rstrip("]").partition("[")
        assert name in (".", "penstock")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"])


def check_git(command: Command) -> None:
    assert command.words[1] == "clone"


def check_docker(command: Command) -> None:
    """`tests/compose` says what the file must do; this, that what is typed is in it."""
    assert command.words[1] == "compose"
    words = list(command.words[2:])
    text = (ROOT / "docker-compose.yml").read_text()
    if words[0] == "--profile":
        assert re.search(rf"profiles: \[.*\b{words[1]}\b", text), f"there is no profile {words[1]}"
        del words[:2]
    action, *rest = words
    assert action in ("up", "down", "logs", "exec")
    if action in ("logs", "exec"):
        assert re.search(rf"^  {rest[0]}:$", text, re.MULTILINE), f"there is no service {rest[0]}"


def check_source(command: Command) -> None:
    """It makes our commands known, and `make` has made it."""
    assert command.arguments == [".venv/bin/activate"]
    assert (Path(sys.executable).parent / "penstock").exists()


CHECKS: dict[str, Callable[[Command], None]] = {
    "make": check_make,
    "penstock": check_penstock,
    "python": check_python,
    "torchrun": check_torchrun,
    "npm": check_npm,
    "pip": check_pip,
    "git": check_git,
    "docker": check_docker,
    "cd": lambda _: None,
    "source": check_source,
}


@pytest.mark.usefixtures("stop_after_parsing")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests have imported it
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_exists(command: Command) -> None:
    assert command.program in CHECKS, "a program that this test does not know"
    CHECKS[command.program](command)


def test_all_blocks_of_commands_are_found() -> None:
    """Other blocks are Python or drawings."""
    for block in blocks():
        known = block.language in ("sh", "python") or (not block.language and re.search("[─│▶]", block.text))
        assert known, f"{block}: mark a block of commands with ```sh"


@pytest.fixture
def watched_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataLoader[Any]]:
    """A training called demo with a loader called train, on the dashboard that commands find by themselves."""
    for variable, value in environment(tmp_path).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PENSTOCK_RUN", "demo")
    with dashboard(tmp_path, "--data", ":memory:"):
        wait_until(discovery.read, "word of where it is")  # else the loader would start one of its own
        train: DataLoader[Any] = DataLoader(
            Samples("int", 1_000_000), num_workers=1, name="train", monitor=True, publish_interval=0.05
        )
        iterator = iter(train)
        next(iterator)
        wait_until(lambda: "train" in penstock("status"), "the loader on the dashboard")
        yield train
        train.close()


RUN = ("status", "resize", "pause", "resume", "auto", "tokens")
"""Subcommands that are run as they are printed."""


def test_commands_for_scripts_do_what_is_printed_beside_them(watched_training: DataLoader[Any]) -> None:
    printed = [command.arguments for command in COMMANDS if command.program == "penstock"]
    for arguments in printed:
        if (arguments[0] in RUN and len(arguments) > 1) or arguments == ["status"]:
            penstock(*arguments)
    assert {arguments[0] for arguments in printed} >= set(RUN)
    wanted = next(int(arguments[-1]) for arguments in printed if arguments[0] == "resize")
    assert watched_training.stats().target == wanted
    assert watched_training.stats().state == "running", "it was paused and resumed"
    assert watched_training.stats().tuned is not None, "the tuner was switched on"


def penstock(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "penstock_dashboard", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"penstock {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout
