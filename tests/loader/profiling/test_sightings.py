"""What a worker was seen at between two moments; slow samples and stalls get their stacks by that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from msgspec import UNSET
from penstock import DataLoader
from penstock.profiling.sightings import OPEN, Sightings
from penstock.profiling.tree import Tree
from penstock.protocol import Stall, Stats

from tests.loader.profiling.trees import function
from tests.patience import PATIENCE


def seen() -> tuple[Sightings, dict[str, int]]:
    tree = Tree()
    get = tree.node(-1, tree.function(function(0)), 10)
    nodes = {"get": get}
    nodes["decode"] = tree.node(get, tree.function(function(1)), 20)
    nodes["scale"] = tree.node(get, tree.function(function(2)), 30)
    nodes["inner"] = tree.node(nodes["decode"], tree.function(function(3)), 40)
    return Sightings(tree), nodes


def test_the_innermost_call_with_half_of_the_time_is_the_stack() -> None:
    sightings, nodes = seen()
    sightings.note(0, 50, [(10, nodes["inner"], 3), (20, nodes["decode"], 3), (30, nodes["scale"], 2), (40, -1, 1)])
    assert [line.split(" in ")[1] for line in sightings.stack(0, 0, 50).splitlines()] == [
        function(1).name,
        function(0).name,
    ]
    assert "line 40" in sightings.stack(0, 5, 15)
    assert sightings.stack(0, 41, 50) == sightings.stack(1, 0, 50) == ""
    assert sightings.stack(0, 40, 40) == ""  # our own code


def test_who_asks_is_told_once_the_looks_have_come() -> None:
    sightings, nodes = seen()
    told: list[str] = []
    sightings.ask(0, 0, 100, told.append)
    sightings.ask(1, 0, 100, told.append)
    sightings.note(0, 90, [(80, nodes["scale"], 1)])
    sightings.answer()
    assert told == []
    sightings.note(0, 110, [])
    sightings.answer()
    assert len(told) == 1
    sightings.note(1, 90, [(50, nodes["scale"], 1)])
    sightings.answer(last=True)  # the worker has died: what was seen of it is told
    assert len(told) == 2
    sightings.answer(last=True)
    assert len(told) == 2


def test_questions_are_bounded() -> None:
    sightings, nodes = seen()
    told: list[str] = []
    for _ in range(2 * OPEN):
        sightings.ask(0, 0, 100, told.append)
    sightings.note(0, 110, [(80, nodes["scale"], 1)])
    sightings.answer()
    assert len(told) == OPEN


def waits(seconds: float) -> None:
    time.sleep(seconds)


class Uneven(torch.utils.data.Dataset[torch.Tensor]):
    """One sample of 64 takes 0.4 s, in `waits`."""

    def __len__(self) -> int:
        return 64 * 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        waits(0.4 if index % 64 == 5 else 0.001)
        return torch.tensor(index)


def read_until(loader: DataLoader[Any], done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    for _ in loader:
        if done():
            return
        assert time.monotonic() < end, loader.stats().slowest


def one_with_stack(loader: DataLoader[Any]) -> bool:
    return any(sample.stack for sample in loader.stats().slowest)


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "process"), (2, "thread")])
def test_slow_samples_have_the_times_of_their_batch_and_their_own_stack(workers: int, kind: Any) -> None:
    with (
        DataLoader(
            Uneven(), 8, num_workers=workers, workers=kind, monitor=False, record_samples=3, name="uneven"
        ) as loader,
        loader.profiling(rate=100),
    ):
        read_until(loader, lambda: one_with_stack(loader))
        stats: Stats = loader.stats()
    sample = next(each for each in stats.slowest if each.stack)
    assert int(sample.index) % 64 == 5
    assert sample.batch == int(sample.index) // 8
    assert 0 <= sample.worker < max(workers, 1)
    assert sample.fetch_us >= sample.us >= 400_000
    assert 0 < sample.collate_us < sample.fetch_us
    calls = sample.stack.splitlines()
    assert f'File "{__file__}", line {waits.__code__.co_firstlineno + 1} in waits' in calls[0]
    assert "Uneven.__getitem__" in calls[1]
    assert len(calls) == 2


@pytest.mark.usefixtures("nothing_left_behind")
def test_without_a_profile_they_have_the_times_and_no_stack() -> None:
    with DataLoader(Uneven(), 8, num_workers=1, monitor=False, record_samples=3, name="uneven") as loader:
        iterator = iter(loader)
        next(iterator)
        (first, *_), hottest = loader.stats().slowest, loader.stats().hottest
        del iterator
    assert (first.index, first.batch, first.worker, first.stack) == ("5", 0, 0, "")
    assert hottest is UNSET


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_short_stall_is_told_again_with_what_was_seen_at_it() -> None:
    """Shorter than `stack_after`, so that nobody asks the worker itself."""
    with DataLoader(Uneven(), 8, num_workers=2, monitor=False, stack_after=60.0, name="uneven") as loader:
        ledger = loader._penstock.ledger
        stalls: list[Stall] = []

        def told() -> bool:
            events = cast("list[Any]", ledger.take_events())
            stalls.extend(event for event in events if isinstance(event, Stall))
            return any(stall.stack for stall in stalls)

        with loader.profiling(rate=100):
            read_until(loader, told)
    again = next(stall for stall in stalls if stall.stack)
    first = next(stall for stall in stalls if stall.batch == again.batch)
    assert first.stack == ""
    assert (first.at, first.us, first.epoch) == (again.at, again.us, again.epoch)
    assert "in waits" in again.brief.splitlines()[0]
