"""What is said of other machines: where workers run, what comes from there, what is lost on the way, what limits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import astuple
from penstock import Agents
from penstock.protocol import Machine
from torch.utils.data import Dataset

from tests.loader.agent.agents import SECRET, agents, remote, shared
from tests.loader.agent.runs import Cable, Run, lost
from tests.loader.scenarios import Loaders, kill
from tests.loader.support import wait_until

pytestmark = pytest.mark.usefixtures("shared_agents", "nothing_left_behind")


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


def machines_of(loader: Any) -> list[Machine]:
    found: list[Machine] = loader.stats().machines
    return found


def test_the_machine_of_each_worker_is_known(loaders: Loaders, tmp_path: Path) -> None:
    run = Run(loaders, tmp_path, remote(shared[:1], local=1))
    wait_until(lambda: all(each.rss for each in run.loader.stats().workers), "what the system says of all workers")
    roster = sorted(run.iterator.pool.conductor.roster, key=lambda each: each.id)
    assert [worker.host for worker in roster] == ["", socket.gethostname()]
    usage = [worker.used() for worker in roster]
    assert [used.elsewhere for used in usage] == [False, True], "it takes none of this machine's processors"
    wait_until(lambda: run.loader.stats().network[0].bytes is not None, "what came from there in a second")
    stats = run.loader.stats()
    ((name, there, processors, received, _, way, lost),) = map(astuple, machines_of(run.loader))
    assert (name, there, lost) == (socket.gethostname(), [1], 0)
    assert processors == len(os.sched_getaffinity(0))
    assert received
    assert way
    assert stats.network[0].text.startswith(f"{name}: 1 worker on")
    assert f"  machine   {stats.network[0].text}" in str(stats).splitlines()
    assert str(stats).splitlines()[-1].endswith(f"  {name}")
    run.finish()


@lost
def test_what_is_lost_on_the_way_is_counted(loaders: Loaders, tmp_path: Path) -> None:
    with agents(2) as started:
        run = Run(loaders, tmp_path, remote(started))
        kill(started[0].pid)

        def without() -> Any:
            return next((each for each in machines_of(run.loader) if not each.processors), None)

        wait_until(without, "the news of its death")
        assert without().lost >= 1, "a task that its worker had"
        assert without().workers == []
        assert any("cannot be reached, and is dialed" in each.text for each in run.loader.stats().network)
        run.finish()


class Heavy(Dataset[Any]):
    """Samples that cost next to nothing and are large."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 20,), index % 251, dtype=torch.uint8)


def test_batches_that_are_larger_than_the_network_carries(loaders: Loaders) -> None:
    """The way to the agent is through a relay that passes on no more than 4 MB a second."""
    with Cable(shared[0].address, 4e6) as narrow:
        workers = Agents([narrow.address], token=SECRET)
        loader = loaders(Heavy(), num_workers=1, workers=workers, memory_budget=8 << 20)
        stats = next(stats for _ in loader if (stats := loader.stats()).verdict.limit == "network")
        assert "Batches are larger than the network carries" in stats.verdict.sentence
        (machine,) = stats.network
        assert machine.full is not None
        assert machine.full > 0.5
        assert "the network full" in machine.text
