"""Workers that Ray places, on a real cluster of several raylets. `test_ray` runs this, apart from the rest.

One cluster serves all tests, in the order in which they stand: the last ones take it apart. It ends with the namespace.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch.utils.data
from penstock import RayWorkers

from tests.loader.scenarios import Counting, Held, InThread, Loaders, await_workers, kill, plain, worker_pids
from tests.loader.support import ROOT, Samples, wait_until
from tests.ray_cluster import RayCluster

pytestmark = pytest.mark.filterwarnings("ignore:.*(exited unexpectedly|was lost|died|cannot be reached|no place)")


@pytest.fixture(scope="module")
def cluster() -> RayCluster:
    return RayCluster(nodes=2, processors=2)


def ours() -> set[int]:
    """Agents, sessions, zygotes and remote workers that there are on the cluster's nodes, whoever started them."""
    return {each.pid for each in psutil.process_iter(["cmdline"]) if "penstock.agent" in (each.info["cmdline"] or ())}


@pytest.fixture
def loaders(cluster: RayCluster) -> Iterator[Loaders]:  # noqa: ARG001
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

    def await_loss(self, left: int) -> None:
        """Wait for the news that so many of the workers are left."""
        wait_until(lambda: len({*self.pids} & {*worker_pids(self.loader)}) == left, "the news")

    def finish(self) -> None:
        self.dataset.let_go()
        batches = plain(self.began + self.rest.result())
        assert [index for ((index,), _) in batches] == list(range(40))


def test_the_stream_is_torchs_here_and_there(loaders: Loaders, cluster: RayCluster) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 3}
    workers = RayWorkers(cluster.address, local=1)
    made = loaders(Samples("dict", 60), workers=workers, persistent_workers=True, **options)
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


def test_a_cluster_that_is_too_small_says_what_is_missing(loaders: Loaders, cluster: RayCluster) -> None:
    made = loaders(Samples(length=12), num_workers=6, workers=RayWorkers(cluster.address))
    with pytest.warns(UserWarning, match=r"2 workers have no place in the Ray cluster: each needs 1 CPU, and 0 CPU"):
        assert plain(made) == [[n] for n in range(12)]


def test_nothing_to_be_had_is_an_error(loaders: Loaders, cluster: RayCluster) -> None:
    workers = RayWorkers(cluster.address, num_cpus=0, resources={"unheard of": 1})
    made = loaders(Samples(), num_workers=1, workers=workers)
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


def test_nothing_is_left_when_training_is_killed(loaders: Loaders, cluster: RayCluster, tmp_path: Path) -> None:
    del loaders  # which waits for the end of everything
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, cluster.address, str(tmp_path)],
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


def test_no_death_changes_the_stream(loaders: Loaders, cluster: RayCluster, tmp_path: Path) -> None:
    """Of an agent, then of Ray's actor that has one, then of a node: each in the middle of the same epoch."""
    run = Run(loaders, tmp_path, RayWorkers(cluster.address), 4)
    for struck in ("agent", "actor"):
        agent = psutil.Process(run.pids[0]).parent().parent().parent()
        kill(agent.pid if struck == "agent" else agent.parent().pid)
        run.await_loss(left=2)
        run.pids = await_workers(run.loader, 4)
    cluster.lose(cluster.nodes[-1])
    run.await_loss(left=2)
    run.finish()


def test_without_its_head_a_cluster_goes_on_and_does_not_grow(
    loaders: Loaders, cluster: RayCluster, tmp_path: Path
) -> None:
    run = Run(loaders, tmp_path, RayWorkers(cluster.address, local=1), 2)
    cluster.kill_head()
    run.finish()
    assert set(run.pids) == {pid for _, pid in run.dataset.fetched()}, "nobody had to be replaced"
