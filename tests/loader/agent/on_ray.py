"""Workers that Ray places, on a real cluster of several raylets. `test_ray` runs this, in a network namespace.

One cluster serves all tests, in the order in which they stand: the last ones take it apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch.utils.data
from penstock import RayWorkers
from ray.cluster_utils import Cluster

from tests.loader.scenarios import Counting, Held, InThread, Loaders, await_workers, kill, plain, worker_pids
from tests.loader.support import ROOT, Samples, descendants, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*(exited unexpectedly|was lost|died|cannot be reached|no place)")


class Nodes:
    """The cluster: a head without processors, and nodes with two each."""

    def __init__(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(num_cpus=2) for _ in range(2)]

    def workers(self, local: int = 0, **options: Any) -> RayWorkers:
        return RayWorkers(self.cluster.address, local=local, **options)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.cluster.shutdown()


def ours() -> set[int]:
    """Agents, sessions, zygotes and remote workers that there are on the cluster's nodes."""
    found = set()
    for pid in descendants(os.getpid()):
        try:
            if "penstock.agent" in psutil.Process(pid).cmdline():
                found.add(pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def loaders(nodes: Nodes) -> Iterator[Loaders]:  # noqa: ARG001
    made = Loaders()
    yield made
    made.close()
    wait_until(lambda: not ours(), "the end of everything on the nodes")


class Run:
    """An epoch that stands still in the middle until `finish`."""

    def __init__(self, loaders: Loaders, folder: Path, workers: RayWorkers, count: int) -> None:
        self.dataset = Held(folder, {20, 21}, 40)
        self.loader = loaders(self.dataset, num_workers=count, workers=workers)
        iterator = iter(self.loader)
        self.began = [next(iterator) for _ in range(4)]
        self.rest = InThread(lambda: list(iterator))
        self.dataset.await_held(20)
        self.pids = await_workers(self.loader, count)

    def finish(self) -> None:
        self.dataset.let_go()
        batches = plain(self.began + self.rest.result())
        assert [index for ((index,), _) in batches] == list(range(40))


def test_the_stream_is_torchs_here_and_there(loaders: Loaders, nodes: Nodes) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 3}
    made = loaders(Samples("dict", 60), workers=nodes.workers(local=1), persistent_workers=True, **options)
    expected = [str(batch) for batch in torch.utils.data.DataLoader(Samples("dict", 60), **options)]
    iterator = iter(made)
    got = [str(next(iterator))]
    pids = await_workers(made, 3)
    assert pids[0] not in ours()
    assert set(pids[1:]) <= ours()
    assert made.resize(5).state == "applied"
    assert made.resize(2).state == "applied"
    assert got + [str(batch) for batch in iterator] == expected
    assert [str(batch) for batch in made] == expected


def test_a_cluster_that_is_too_small_says_what_is_missing(loaders: Loaders, nodes: Nodes) -> None:
    made = loaders(Samples(length=12), num_workers=6, workers=nodes.workers())
    with pytest.warns(UserWarning, match=r"2 workers have no place in the Ray cluster: each needs 1 CPU, and 0 CPU"):
        assert plain(made) == [[n] for n in range(12)]


def test_nothing_to_be_had_is_an_error(loaders: Loaders, nodes: Nodes) -> None:
    made = loaders(Samples(), num_workers=1, workers=nodes.workers(num_cpus=0, resources={"unheard of": 1}))
    with pytest.raises(ConnectionError, match=r"each needs 1 unheard of, and 0 unheard of is left on 3 nodes"):
        iter(made)


def test_a_cluster_that_is_not_there_is_an_error(loaders: Loaders) -> None:
    made = loaders(Samples(), num_workers=1, workers=RayWorkers("127.0.0.1:1"))
    with pytest.raises(ConnectionError, match="Ray cannot be used"):
        iter(made)


TRAINING = """
import sys
from penstock import DataLoader, RayWorkers
from pathlib import Path
from tests.loader.scenarios import Counting

loader = DataLoader(Counting(Path(sys.argv[2]), 10_000), num_workers=2, workers=RayWorkers(sys.argv[1]))
for number, batch in enumerate(loader):
    if number == 3:
        print("under way", flush=True)
        sys.stdin.read()
"""


def test_nothing_is_left_when_training_is_killed(loaders: Loaders, nodes: Nodes, tmp_path: Path) -> None:
    del loaders  # which waits for the end of everything
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, nodes.cluster.address, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert training.stdout is not None
        assert training.stdout.readline() == "under way\n"
        assert Counting(tmp_path).fetched()
        assert len(ours()) >= 4
    finally:
        training.kill()
        training.communicate()
    wait_until(lambda: not ours(), "the end of everything on the nodes")


@pytest.mark.parametrize("what", ["agent", "actor"])
def test_a_death_changes_nothing(loaders: Loaders, nodes: Nodes, tmp_path: Path, what: str) -> None:
    run = Run(loaders, tmp_path, nodes.workers(), 2)
    worker = psutil.Process(run.pids[0])
    agent = worker.parent().parent().parent()
    kill(agent.pid if what == "agent" else agent.parent().pid)
    wait_until(lambda: worker.pid not in worker_pids(run.loader), "the news")
    await_workers(run.loader, 2)
    run.finish()


def test_a_node_that_is_lost_is_done_without(loaders: Loaders, nodes: Nodes, tmp_path: Path) -> None:
    run = Run(loaders, tmp_path, nodes.workers(), 4)
    before = set(run.pids)
    nodes.cluster.remove_node(nodes.nodes.pop(), allow_graceful=False)
    wait_until(lambda: len(before & set(worker_pids(run.loader))) == 2, "the news")
    run.finish()


def test_without_its_head_a_cluster_goes_on_and_does_not_grow(loaders: Loaders, nodes: Nodes, tmp_path: Path) -> None:
    run = Run(loaders, tmp_path, nodes.workers(local=1), 2)
    head = psutil.Process(nodes.cluster.head_node.all_processes["gcs_server"][0].process.pid)
    head.kill()
    head.wait()
    run.finish()
    assert set(run.pids) == {pid for _, pid in run.dataset.fetched()}, "nobody had to be replaced"
