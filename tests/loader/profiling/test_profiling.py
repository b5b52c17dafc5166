"""Profiles of real loaders: what costs is named, whoever makes the batches, and the stream is the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from penstock import DataLoader
from penstock.profiling.session import Profiling
from penstock.protocol import ProfilePart

from tests.loader.scenarios import worker_pids
from tests.loader.support import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def reads() -> None:
    time.sleep(0.003)


def quick(index: int) -> torch.Tensor:
    return torch.tensor([index, int(torch.randint(1000, ()))])


class Reading(torch.utils.data.Dataset[torch.Tensor]):
    """Nearly all of its time is that of `reads`; random numbers show whether the stream stays the same."""

    def __init__(self, length: int = 100_000) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        reads()
        return quick(index)


def collects(samples: list[torch.Tensor]) -> torch.Tensor:
    reads()
    return torch.stack(samples)


def make(number: int, **more: Any) -> Any:
    torch.manual_seed(7)
    return DataLoader(Reading(), 4, num_workers=number, monitor=False, collate_fn=collects, **more)


def until_seen(profiling: Profiling, what: Callable[[], bool]) -> Callable[[], bool]:
    end = time.monotonic() + PATIENCE

    def seen() -> bool:
        assert time.monotonic() < end, f"not seen: {profiling.profile}"
        return what()

    return seen


@pytest.mark.filterwarnings("ignore:the dataset, or what it calls, draws random numbers")
@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "process"), (2, "thread")])
def test_the_line_that_costs_is_named_and_the_stream_is_the_same(workers: int, kind: str) -> None:
    with make(workers, workers=kind) as loader, loader.profiling(rate=200) as profiling:
        profile = profiling.profile
        told = until_seen(profiling, lambda: profile.total() > 1 and len(profile.tree.workers()) == max(workers, 1))
        batches = []
        for batch in loader:
            batches.append(batch)
            if told():
                break
    found = profile.hottest()
    assert found is not None
    assert found.function == "reads"
    assert found.file == __file__
    assert found.line == reads.__code__.co_firstlineno + 1
    assert found.share > 0.5
    rows = {row.function: row for row in profile.functions()}
    assert rows["Reading.__getitem__"].total >= rows["Reading.__getitem__"].own
    assert profile.total(phase="fetch") > profile.total(phase="collate") > 0
    assert profile.total("processor") < profile.total()
    collating = {row.function for row in profile.functions(phase="collate")}
    assert {"collects", "reads"} <= collating
    assert "Reading.__getitem__" not in collating
    if workers:
        same = slice(None) if kind == "process" else slice(1)  # threads share the generator of random numbers
        with make(workers, workers=kind) as plain:
            assert all(torch.equal(a[:, same], b[:, same]) for a, b in zip(batches, plain, strict=False))


@pytest.mark.filterwarnings("ignore:.*exited unexpectedly")
def test_workers_that_come_and_go_are_seen_and_nothing_is_lost_with_those_that_die() -> None:
    with make(2, max_workers=4) as loader, loader.profiling(rate=200) as profiling:
        profile, iterator = profiling.profile, iter(loader)
        batches = [next(iterator)]
        loader.resize(4)
        told = until_seen(profiling, lambda: len(profile.tree.workers()) == 4)
        while not told():
            batches.append(next(iterator))
        victim = worker_pids(loader)[0]
        os.kill(victim, signal.SIGKILL)
        while loader.stats().recoveries == 0:
            batches.append(next(iterator))
        loader.resize(1)
        total = profile.total()
        told = until_seen(profiling, lambda: profile.total() > total + 0.5)
        while not told():
            batches.append(next(iterator))
        del iterator
    assert [int(number) for batch in batches for number in batch[:, 0]] == list(range(4 * len(batches)))
    assert profile.idle.keys() <= {0, 1, 2, 3}


def test_it_ends_by_itself_with_the_loader_and_when_another_begins() -> None:
    loader = make(1)
    iterator = iter(loader)
    next(iterator)
    first, second = loader.profiling(), loader.profiling(seconds=0.3)
    assert first.over.wait(PATIENCE)
    assert second.over.wait(PATIENCE)
    assert loader._penstock.profiling is None
    third = loader.profiling()
    loader.close()
    assert third.over.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="closed"):
        loader.profile()

    other = make(0)
    fourth = other.profiling()
    next(iter(other))
    del other
    assert fourth.over.wait(PATIENCE)


def test_profile_waits_while_another_thread_trains_and_ctrl_c_ends_it() -> None:
    with make(1) as loader:
        done = threading.Event()

        def train() -> None:
            for _ in loader:
                if done.is_set():
                    return

        training = threading.Thread(target=train)
        training.start()
        try:
            profile = loader.profile(seconds=2.0)
            assert profile.functions()
            assert profile.seconds >= 2.0
            main = threading.get_ident()
            threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                loader.profile(seconds=600)
            wait_until(lambda: loader._penstock.profiling is None, "the end of the profile")
        finally:
            done.set()
            training.join()


def test_persistent_workers_and_further_epochs_are_looked_at_too() -> None:
    dataset = Reading(16)
    for persistent in (True, False):
        with DataLoader(dataset, 4, num_workers=1, monitor=False, persistent_workers=persistent) as loader:
            with loader.profiling(rate=200) as profiling:
                profile = profiling.profile
                end, epochs = time.monotonic() + PATIENCE, 0
                while profile.total() < 0.3 or epochs < 3:
                    assert time.monotonic() < end
                    assert len(list(loader)) == 4
                    epochs += 1
            assert {row.function for row in profile.functions()} >= {"reads"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"seconds": 0}, ValueError),
        ({"seconds": 1e9}, ValueError),
        ({"seconds": "10"}, TypeError),
        ({"rate": 0}, ValueError),
        ({"rate": None}, TypeError),
        ({"rate": True}, TypeError),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(arguments: dict[str, Any], error: type[Exception]) -> None:
    with make(0) as loader, pytest.raises(error, match=next(iter(arguments))):
        loader.profile(**arguments)


def test_parts_are_events_of_a_loader_that_is_published() -> None:
    with make(0) as loader:
        engine = loader._penstock
        iterator = iter(loader)
        next(iterator)
        with loader.profiling(rate=200):
            next(iterator)
        assert not [event for event in engine.ledger.take_events() if isinstance(event, ProfilePart)]
