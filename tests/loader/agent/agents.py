"""Agents as processes of this machine, for tests: `penstock agent`, as it is started by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock import Agents
from penstock.agent.options import TOKEN

from tests.loader.support import ROOT

SECRET = "a secret of these tests"


class Agent:
    """One agent. It ends, with all that it started, when its standard input does, whatever becomes of the tests."""

    def __init__(
        self,
        *,
        token: str = SECRET,
        bind: str = "127.0.0.1:0",
        program: tuple[str, ...] = ("-m", "penstock_dashboard.cli"),
        prefix: tuple[str, ...] = (),
    ) -> None:
        """`program`: what Python runs; `prefix`: what starts Python."""
        command = [*prefix, sys.executable, *program, "agent", "--tethered", "--bind", bind]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, TOKEN: token},
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("listening on "), self.process.communicate()[1]
        self.address = said.split()[-1]

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> str:
        """End it, and what it started; returns what it said meanwhile."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
        return self.process.communicate()[1]


@contextmanager
def agents(count: int = 1, **options: Any) -> Iterator[list[Agent]]:
    started: list[Agent] = []
    try:
        for _ in range(count):
            started.append(Agent(**options))
        yield started
    finally:
        for each in started:
            each.end()


def remote(started: list[Agent], local: int = 0) -> Agents:
    """The loader's argument `workers`."""
    return Agents([each.address for each in started], local=local, token=SECRET)


shared: list[Agent] = []
"""Two agents for all tests that leave them as they are; the fixture `shared_agents` starts them."""
