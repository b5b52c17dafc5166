"""Other machines, for one that has none: agents in processes of their own, on processors that training is not given.

Training and its own workers get one processor of this machine, and two agents share the others between them (one agent,
if there is only one other). So what the page shows is real: the one processor is full, and those of the agents are not.
Only the network is none: it is this machine's loopback.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..agent.options import TOKEN, Agents

MOST = 2
"""Agents."""


@contextmanager
def other_machines(local: int) -> Iterator[Agents]:
    """Start agents and leave this process one processor; gives the loader's argument `workers`. All of it ends with it.

    An agent ends when its standard input does, so that it is gone even if this process is killed.
    """
    mine, others = _shares(_affinity())
    token, addresses = secrets.token_hex(16), []
    with ExitStack() as stack:
        for processors in others:
            process = stack.enter_context(_agent(token, processors))
            said = process.stdout.readline() if process.stdout is not None else ""
            if not said.startswith("listening on "):
                raise RuntimeError(f"an agent did not start: exit code {process.wait()}")
            addresses.append(said.split()[-1])
        _run_on(mine)
        yield Agents(addresses, local=local, token=token)


def _shares(processors: list[int]) -> tuple[list[int], list[list[int]]]:
    """Training's processors, and each agent's. A machine that has but one shares it: nothing is gained there."""
    first, rest = processors[:1], processors[1:] or processors
    return first, [rest[number::MOST] for number in range(min(MOST, len(rest)))]


def _agent(token: str, processors: list[int]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.demo.machines", ",".join(map(str, processors))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, TOKEN: token},
        start_new_session=True,  # Ctrl-C is for training, which ends them
        text=True,
    )


def _affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def _run_on(processors: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), processors)


def main() -> None:
    """An agent on some processors."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(number) for number in sys.argv[1].split(",")])
    command = [sys.executable, "-m", "penstock.agent", "--tethered", "--bind", "127.0.0.1:0"]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
