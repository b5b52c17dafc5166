"""Waits that do not end are told while they last, with what is being done meanwhile; and stacks, whenever asked for."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from penstock import DataLoader
from penstock.insight.recording import Turn
from penstock.pool.observer import Cause
from penstock.protocol import ShowStack, StackEvent, Stall
from penstock.telemetry.hangs import Found, HangWatch, Wait
from penstock.telemetry.published import PublishedLoader
from torch.utils.data import Dataset

from tests.backend.harness import until
from tests.patience import PATIENCE

SECOND = 1_000_000_000
CONTEXT = torch.multiprocessing.get_context("fork")


def wait(batch: int = 3, cause: Cause = Cause.STARVATION) -> Wait:
    return Wait(100 * SECOND, 0, batch, cause)


# -- the watch, as a plain object ---------------------------------------------------------------------------


def test_a_wait_is_told_from_its_time_on_again_when_something_changed_and_when_it_is_over() -> None:
    watch, now = HangWatch(SECOND // 2), 100 * SECOND
    assert not watch.look(now + SECOND // 4, wait())
    assert watch.lasting(now + SECOND // 4, wait()) is None
    assert watch.look(now + SECOND, wait())
    first = watch.found(now + SECOND, 1001.0, Found(2, "  File 'x'"))
    assert first is not None and first.ongoing and (first.at, first.us, first.worker) == (1000.0, 1_000_000, 2)
    lasting = watch.lasting(now + 2 * SECOND, wait())
    assert lasting is not None and (lasting.us, lasting.batch, lasting.worker) == (2_000_000, 3, 2)
    assert not watch.look(now + SECOND * 3 // 2, wait()), "it was looked at just now"
    assert watch.look(now + 3 * SECOND, wait())
    again = watch.found(now + 3 * SECOND, 1003.0, Found(2, "  File 'x'"))
    assert again is not None and (again.at, again.us) == (1000.0, 3_000_000), "it has lasted more than twice as long"
    assert watch.look(now + 5 * SECOND, wait())
    assert watch.found(now + 5 * SECOND, 1005.0, Found(2, "  File 'x'")) is None, "nothing is new"
    assert watch.look(now + 9 * SECOND, wait())
    moved = watch.found(now + 9 * SECOND, 1009.0, Found(2, "  File 'y'"))
    assert moved is not None and (moved.at, moved.us, moved.stack) == (1000.0, 9_000_000, "  File 'y'")
    assert watch.over(1010.0, wait()) is None
    last = watch.over(1012.0, None)
    assert last is not None and not last.ongoing and (last.us, last.stack) == (12_000_000, "  File 'y'")
    assert watch.over(1013.0, None) is None, "once"


def test_what_the_pool_tells_of_a_stall_s_end_becomes_part_of_what_was_told() -> None:
    watch, now = HangWatch(SECOND // 2), 100 * SECOND
    assert watch.look(now + SECOND, wait(3, Cause.REORDER_STALL))
    assert watch.found(now + SECOND, 1001.0, Found(2, "stack")) is not None
    ended = Stall(1000.5, 1_500_000, 4, 0, 3, 2, "17", 900)
    assert not watch.ends(Stall(1000.5, 1_500_000, 4, 0, 2, 2)), "of another batch nothing was told"
    assert watch.ends(ended)
    last = watch.over(1002.5, wait(4))
    assert last is not None
    assert (last.at, last.us, last.held_back, last.slowest_index, last.stack) == (1000.0, 2_000_000, 4, "17", "stack")


@pytest.mark.parametrize(("cause", "lasts", "long"), [
    (Cause.REORDER_STALL, 1, True),
    (Cause.STARVATION, 5, False),
    (Cause.STARVATION, 7, True),
    (Cause.STARTUP, 4, False),
    (Cause.STARTUP, 7, True),
    (Cause.PAUSED, 100, False),
])  # fmt: skip
def test_what_is_usual_is_not_told(cause: Cause, lasts: int, long: bool) -> None:
    usual = [Turn(2.0, 0.1)] * 60 + [Turn(60.0, 0.1)] * 4
    watch = HangWatch(SECOND // 2, usual)
    assert watch.look((100 + lasts) * SECOND, wait(3, cause)) is long
    assert (watch.lasting((100 + lasts) * SECOND, wait(3, cause)) is not None) is long


def test_a_pause_does_not_count() -> None:
    watch = HangWatch(SECOND // 2)
    assert not watch.look(160 * SECOND, wait(3, Cause.PAUSED))
    assert not watch.look(160 * SECOND + SECOND // 4, wait())
    assert watch.look(161 * SECOND, wait())


# -- real loaders -------------------------------------------------------------------------------------------


def in_a_lock(stuck: Any) -> None:
    stuck.wait(PATIENCE)


def in_c_code(stuck: Any) -> None:
    """Nothing else runs in the process: the interpreter's lock is held."""
    while not stuck.is_set():
        ctypes.PyDLL(None).usleep(200_000)


class Stuck(Dataset[int]):
    """Sample 5 hangs until it is let go."""

    def __init__(self, hang: Callable[[Any], None]) -> None:
        self.hang = hang
        self.reached, self.go = CONTEXT.Event(), CONTEXT.Event()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.reached.set()
            self.hang(self.go)
        return index


class Run:
    """A training in a thread, whose events are taken as the publisher takes them."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.source = PublishedLoader(loader)
        self.events: list[Any] = []
        self.thread = threading.Thread(target=lambda: list(loader), daemon=True)
        self.thread.start()

    def stalls(self) -> list[Stall]:
        self.events += self.source.take_events()
        return [event for event in self.events if isinstance(event, Stall) and event.us > 50_000]

    def told(self) -> Stall:
        """What was told of the batch that hangs, while it does."""
        until(lambda: any(each.brief and each.batch == 5 for each in self.stalls()), "its stack")
        return [each for each in self.stalls() if each.batch == 5][-1]

    def end(self) -> None:
        self.loader.dataset.go.set()  # type: ignore[attr-defined]
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("hang", [in_a_lock, in_c_code])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_hang_is_told_while_it_lasts_with_the_user_s_frames(hang: Callable[[Any], None], workers: int) -> None:
    dataset = Stuck(hang)
    loader = DataLoader(dataset, num_workers=workers, stack_after=0.1, multiprocessing_context="fork")
    run = Run(loader)
    try:
        stall = run.told()
        assert stall.ongoing and (stall.epoch, stall.batch) == (0, 5) and stall.worker in range(workers)
        assert f"in {hang.__name__}" in stall.brief and "in __getitem__" in stall.brief
        assert "making.py" in stall.stack and "making.py" not in stall.brief
        assert stall.cause == ("starvation" if workers == 1 else "reorder_stall")
        stats = loader.stats()
        assert stats.hang and (stats.hang.batch, stats.hang.worker) == (5, stall.worker)
    finally:
        run.end()
    last = run.stalls()[-1]
    assert not last.ongoing and last.batch == 5 and last.us >= stall.us and last.stack
    assert not loader.stats().hang
    loader.close()


def test_without_workers_training_s_own_stack_is_told() -> None:
    def hang(go: Any) -> None:
        go.wait(PATIENCE)

    dataset = Stuck(hang)
    loader = DataLoader(dataset, stack_after=0.1)
    run = Run(loader)
    try:
        stall = run.told()
        assert stall.ongoing and (stall.batch, stall.worker) == (5, -1)
        assert "in hang" in stall.brief and "inline.py" not in stall.brief
    finally:
        run.end()
    assert not run.stalls()[-1].ongoing
    loader.close()


class Lazy:
    """A sampler that hangs."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __iter__(self) -> Any:
        for index in range(40):
            if index == 20:
                self.go.wait(PATIENCE)
            yield index


def test_a_sampler_that_hangs_is_seen_in_training_s_stack() -> None:
    sampler = Lazy()
    loader: Any = DataLoader(range(40), sampler=sampler, num_workers=1, stack_after=0.1)  # type: ignore[arg-type]
    run = Run(loader)
    try:
        until(lambda: any("in __iter__" in each.brief for each in run.stalls()), "its stack")
        assert run.stalls()[-1].worker == -1
    finally:
        sampler.go.set()
        run.thread.join(PATIENCE)
    loader.close()


def stacks_of(loader: DataLoader[Any], worker: int | None) -> list[StackEvent]:
    outcome = loader._penstock.wait(loader._penstock.request(ShowStack(worker), command="c", by="somebody"))
    assert outcome.state == "applied"
    return [each for each in loader._penstock.ledger.take_events() if isinstance(each, StackEvent)]


def test_stacks_of_any_worker_any_time_and_why_there_is_none() -> None:
    dataset = Stuck(in_a_lock)
    loader = DataLoader(dataset, num_workers=3, multiprocessing_context="fork")
    batches = iter(loader)
    assert next(batches) == 0
    assert dataset.reached.wait(PATIENCE)
    try:
        every: list[StackEvent] = []

        def looked() -> bool:
            every[:] = stacks_of(loader, None)
            return any("in in_a_lock" in each.brief for each in every) and not any(each.silence for each in every)

        until(looked, "the one that hangs, and no worker that the machine was too busy to let answer in time")
        assert [(each.worker, each.place, each.among) for each in every] == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]
        assert all(each.stack and each.pid for each in every)
        [stuck] = [each for each in every if each.brief]
        assert (stuck.state, stuck.batch) == ("fetching", 5)
        assert (stuck.by, stuck.command) == ("somebody", "c")
        os.kill(stuck.pid, signal.SIGSTOP)
        until(lambda: stacks_of(loader, stuck.worker)[0].silence == "its process is stopped", "a reason")
        os.kill(stuck.pid, signal.SIGCONT)
        [own] = stacks_of(loader, -1)
        assert own.worker == -1 and "in test_stacks_of_any_worker" in own.brief
        with pytest.raises(ValueError, match="there is no worker 7: there are 0, 1, 2"):
            loader._penstock.request(ShowStack(7))
    finally:
        dataset.go.set()
    assert [int(each) for each in batches] == list(range(1, 40)), "nobody who was asked lost a batch"
    loader.close()


def test_a_worker_that_is_asked_before_it_can_answer_lives_on() -> None:
    loader = DataLoader(Stuck(in_a_lock), num_workers=4, multiprocessing_context="fork")
    loader.dataset.go.set()  # type: ignore[attr-defined]
    batches = iter(loader)
    deadline = time.monotonic() + PATIENCE
    while loader.stats().batch == 0 and time.monotonic() < deadline:
        for worker in batches.pool.conductor.roster:  # type: ignore[attr-defined]
            if worker.pid:
                loader._penstock.request(ShowStack(worker.id))
        if all(worker.up for worker in batches.pool.conductor.roster):  # type: ignore[attr-defined]
            break
    assert len(list(batches)) == 40
    assert loader.stats().recoveries == 0
    loader.close()
