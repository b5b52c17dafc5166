"""What viewers of the overview are told of a run as a whole."""

from __future__ import annotations

import time
from contextlib import ExitStack

from penstock.protocol import Overview, RunSummary, Times

from tests.backend.harness import FakeLoader, Running


def tell(loader: FakeLoader, waiting: float) -> None:
    """Two seconds in which training waited for such a share of the time."""
    begin = time.time() - 2
    for step in range(11):
        us = step * 200_000
        times = Times(compute_us=int(us * (1 - waiting)), starvation_us=int(us * waiting))
        loader.snapshot(at=begin + step * 0.2, times=times)


def held_back(message: Overview) -> list[RunSummary]:
    return [each for each in message.runs if each.run == "held" and each.holding]


def test_the_rank_that_holds_back_the_others_is_told_with_the_overview(server: Running) -> None:
    with ExitStack() as held, server.viewer() as viewer:
        loaders = [held.enter_context(server.loader("held", rank=rank)) for rank in range(4)]
        for rank, loader in enumerate(loaders):
            tell(loader, 0.6 if rank == 2 else 0.02)
        viewer.subscribe(overview=True)
        (found,) = held_back(viewer.expect(Overview, lambda message: bool(held_back(message))))
        assert found.holding == "held:2:train"
        assert found.verdict.sentence.startswith("Rank 2 on here holds back all 3 others. It waits 60 % of the time")
        assert (found.loaders, found.running, found.ranks) == (4, 4, 4) and found.batches > 0
        tell(loaders[2], 0.6)
        again = viewer.expect(Overview, lambda message: not message.complete and bool(message.runs))
        assert {each.run for each in again.runs} == {"held"}, "only what changed"


def test_a_run_of_one_loader_is_its_row(server: Running) -> None:
    with server.loader("single") as loader, server.viewer() as viewer:
        tell(loader, 0.6)
        viewer.subscribe(overview=True)
        told = viewer.expect(Overview, lambda message: any(row.id == loader.id for row in message.rows))
        assert not any(each.run == "single" for each in told.runs)
