"""Real trainings on demand, each in a process of its own, forked from one that has loaded torch already.

Run as a module it is that process: a line on its standard input asks for a training, a line on its standard output
says its pid. All of them end with it, and it ends with whoever started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from penstock.protocol import loader_id

from .shapes import Shape

ROOT = Path(__file__).resolve().parents[2]


class Order(msgspec.Struct):
    """A training that is to be started."""

    shape: Shape
    name: str
    environment: dict[str, str]
    """Where it publishes, and as which rank of which run."""


class Trained:
    """A training under way."""

    def __init__(self, pid: int, loader: str) -> None:
        self.pid = pid
        self.id = loader
        """Its loader's id."""

    def end(self) -> None:
        """Ask it to end in an orderly way."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Stage:
    """Starts trainings that publish to one backend or another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._trained: list[Trained] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        if self._process is not None:
            self._process.communicate()  # closes its input, which ends it

    def train(
        self,
        url: str,
        token: str,
        shape: Shape,
        run: str,
        name: str = "train",
        rank: int = 0,
        world_size: int = 1,
    ) -> Trained:
        """Start a training."""
        where = {"PENSTOCK_URL": url, "PENSTOCK_TOKEN": token, "PENSTOCK_RUN": run}
        order = Order(shape, name, {**where, "RANK": str(rank), "WORLD_SIZE": str(world_size)})
        if self._process is None:
            command = [sys.executable, "-m", "tests.recorded.stage"]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        trained = Trained(int(self._process.stdout.readline()), loader_id(run, rank, name))
        self._trained.append(trained)
        return trained

    def clear(self) -> None:
        """Kill all trainings."""
        for trained in self._trained:
            trained.kill()
        self._trained.clear()


def main() -> None:
    from .training import train  # brings torch

    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for trainings that have ended
    # Unbuffered, and so without a lock that would be held while a process is forked.
    with open(0, "rb", buffering=0, closefd=False) as asked, contextlib.suppress(BrokenPipeError):
        for line in iter(asked.readline, b""):
            order = msgspec.json.decode(line, type=Order)
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _end_with_parent()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.environ.update(order.environment)
                train(order.shape, order.name)
                sys.exit(0)
            os.write(1, b"%d\n" % pid)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    main()
