"""Agents on the other end of a real network line, in a network namespace of their own: cut, slow, and gone for good.

The line is a pair of virtual devices, of which one end is here. It is gone with the namespace, and that with the agent.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from penstock.pool.crews.remote import link

from tests.loader.agent.agents import SECRET, Agent, remote, shared
from tests.loader.agent.runs import TRAINING, Run, lost
from tests.loader.scenarios import Loaders, await_workers, kill, worker_pids
from tests.loader.support import Scripts, descendants, wait_until

GONE = """
import sys
from penstock.agent import session
session.GONE_AFTER = 5
from penstock_dashboard.cli import main
sys.exit(main())
"""
"""An agent that takes a machine for lost sooner than others."""
APART = (
    'ip link add there type veth peer name "$1" netns "$2" && ip address add "$3/30" dev there && ip link set there up'
)
numbers = itertools.count()


class Line:
    """A line to an agent."""

    def __init__(self) -> None:
        self.device = f"pst{os.getpid() % 100_000}-{next(numbers)}"
        place = 4 * (next(numbers) % 60)
        self.network = f"10.{64 + os.getpid() // 256 % 64}.{os.getpid() % 256}"
        self.here, self.there = f"{self.network}.{place + 1}", f"{self.network}.{place + 2}"
        inside = f'{APART} && shift 3 && exec "$@"'
        prefix = ("unshare", "-n", "sh", "-euc", inside, "apart", self.device, str(os.getpid()), self.there)
        self.agent = Agent(bind=f"{self.there}:0", program=("-c", GONE), prefix=prefix)
        ip("address", "add", f"{self.here}/30", "dev", self.device)
        ip("link", "set", self.device, "up")

    def cut(self) -> None:
        """Nothing arrives any more on either side."""
        ip("link", "set", self.device, "down")

    def narrow(self) -> None:
        """A tenth of a MB a second comes from there, which waits in a queue for it: small things are late as well."""
        inside = ("nsenter", "-t", str(self.agent.pid), "-n")
        shaping = ("tc", "qdisc", "add", "dev", "there", "root", "tbf", "rate", "1mbit", "burst", "4k", "latency", "1s")
        subprocess.run([*inside, *shaping], check=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def line_to_an_agent() -> Iterator[Line]:
    line = Line()
    try:
        yield line
    finally:
        line.agent.end()


def possible() -> bool:
    try:
        script = "ip link add a0 type veth peer name a1 && tc qdisc add dev a0 root tbf rate 1mbit burst 4k latency 1s"
        return not subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module", autouse=True)
def _lines_can_be_made() -> None:
    if not possible():
        pytest.skip("only root may make network namespaces, and needs iproute2 for it")


@pytest.fixture
def loaders(shared_agents: None, nothing_left_behind: None) -> Iterator[Loaders]:  # noqa: ARG001
    made = Loaders()
    yield made
    made.close()


@lost
def test_a_line_that_is_cut(loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other machine takes over; the one that is cut off ends everything by itself, for nobody can tell it to."""
    monkeypatch.setattr(link, "SILENCE", 1.5)
    with line_to_an_agent() as line:
        run = Run(loaders, tmp_path, remote([line.agent, shared[0]]))
        there = descendants(line.agent.pid) & set(run.pids)
        line.cut()
        wait_until(lambda: not there & set(worker_pids(run.loader)), "the news")
        await_workers(run.loader, 2)
        run.finish()
        run.loader.close()
        wait_until(lambda: not descendants(line.agent.pid), "the end of what it had started, though it heard nothing")


def test_a_line_on_which_everything_is_late(loaders: Loaders, tmp_path: Path) -> None:
    with line_to_an_agent() as line:
        line.narrow()
        run = Run(loaders, tmp_path, remote([line.agent], local=1))
        run.finish()
        assert {pid for _, pid in run.dataset.fetched()} == set(run.pids), "nobody was taken for lost"


def test_nothing_is_left_there_when_training_is_killed_behind_a_line_that_is_cut(
    script: Scripts, tmp_path: Path
) -> None:
    with line_to_an_agent() as line, script(TRAINING, line.agent.address, str(tmp_path), SECRET) as running:
        assert running.line() == "under way"
        assert len(descendants(line.agent.pid)) >= 4, "a session, a zygote and two workers"
        line.cut()
        kill(running.pid)
        wait_until(lambda: not descendants(line.agent.pid), "the end of what it had started")
