"""Ray's part on a node: an actor that starts the agent there, as a process of its own, and lives as long as that does.

The actor has threads, and must not be forked from. The agent ends when the actor does, because its standard input ends.
"""

from __future__ import annotations

import os
import subprocess
import sys

from .options import TOKEN

LINGER = "10"
"""Seconds for which an agent that serves nobody any more waits for somebody: it is there for one pool."""


class Place:
    """One on each node that has workers."""

    def __init__(self, token: str, host: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.agent", "--tethered", "--linger", LINGER, "--bind", f"{host}:0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # As Ray has set it up for this actor: the user's code may be there and nowhere else.
            env={**os.environ, TOKEN: token, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            text=True,
        )
        said = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not said.startswith("listening on "):
            raise RuntimeError(f"the agent on {host} did not start: exit code {self._process.wait()}")
        self._address = said.split()[-1]

    def address(self) -> str:
        """Where the agent listens."""
        return self._address

    def wait(self) -> int:
        """The agent's exit code, when it has ended."""
        return self._process.wait()
