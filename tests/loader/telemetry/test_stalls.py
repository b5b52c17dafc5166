"""Reorder stalls: how long, how much was held back, by whom, and what the culprit was doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch.multiprocessing
from penstock import fetching
from penstock.pool.crews.nursery import Nursery
from penstock.protocol import Stall
from penstock.telemetry.stalls import OpenStall, StallWatch
from torch.utils.data import IterableDataset, get_worker_info

from tests.loader.support import DataLoader
from tests.loader.telemetry.datasets import CLOCK, Gated
from tests.loader.telemetry.servers import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

LONG = 500


# ------------------------------------------------------------------------------------- with a clock of our own


def test_it_lasts_from_the_first_look_to_the_last() -> None:
    watch = StallWatch(LONG)
    assert watch.observe(0, stalled=False) is None
    assert watch.observe(10, stalled=True, epoch=1, batch=7, worker=-1, held=2) is None
    assert watch.observe(20, stalled=True, epoch=1, batch=7, worker=3, held=5) is None
    assert watch.observe(30, stalled=True, epoch=1, batch=7, worker=3, held=4) is None
    watch.finished(1, (-1, 6), "other", 1)
    watch.finished(1, (-1, 7), "42", 99)
    ended = watch.observe(50, stalled=False)
    assert ended is not None
    assert (ended.began, ended.length(), ended.batch, ended.worker, ended.held_back) == (10, 40, 7, 3, 5)
    assert (ended.slowest_index, ended.slowest_ns) == ("42", 99)
    assert watch.observe(60, stalled=False) is None, "it is told once"


def test_the_next_batch_to_be_late_is_a_stall_of_its_own() -> None:
    watch = StallWatch(LONG)
    watch.observe(0, stalled=True, epoch=0, batch=3, worker=0, held=1)
    first = watch.observe(10, stalled=True, epoch=0, batch=4, worker=1, held=1)
    second = watch.observe(15, stalled=False)
    assert first is not None
    assert second is not None
    assert [(stall.batch, stall.length()) for stall in (first, second)] == [(3, 10), (4, 5)]


def test_the_stack_is_asked_for_once_and_only_when_it_lasts() -> None:
    watch = StallWatch(LONG)
    assert watch.next_due(0) is None
    watch.observe(100, stalled=True, epoch=0, batch=0, worker=0, held=1)
    assert watch.next_due(150) == LONG - 50
    assert not watch.stack_due(599)
    assert watch.stack_due(600)
    watch.attach("")  # the worker did not answer: not asked again either
    assert not watch.stack_due(700)
    assert watch.next_due(700) is None


# ----------------------------------------------------------------------------------------- with real pools


@pytest.fixture(autouse=True)
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which sample of a batch is the slowest is the dataset's business, not the machine's."""
    monkeypatch.setattr(fetching, "_clock", CLOCK)


def read(made: Any, opened: Iterable[tuple[int, float]], ready: Callable[[OpenStall], object] = bool) -> list[Stall]:
    """Read an epoch while each gate opens, some seconds after training stalls at it and the stall is `ready`; returns
    what was told.
    """
    dataset = made.dataset
    iterator = iter(made)
    watch = iterator.pool.conductor.observer.stalls

    def is_stalled_at(batch: int) -> bool:
        stall = watch.open
        return stall is not None and stall.batch == batch and bool(ready(stall))

    def let_through() -> None:
        for index, seconds in opened:
            until(partial(is_stalled_at, index // made.batch_size))
            time.sleep(seconds)
            dataset.gates[index].set()

    helper = threading.Thread(target=let_through)
    helper.start()
    assert [index for batch in iterator for index in batch.tolist()] == list(range(len(dataset)))
    helper.join()
    stats = made.stats()
    made.close()
    told = [event for event in made._penstock.ledger.take_events() if isinstance(event, Stall)]
    assert sum(stall.us for stall in told) <= stats.stalls.us
    return told


def test_each_names_its_batch_its_worker_and_the_slowest_sample() -> None:
    made = DataLoader(Gated(40, [9, 26], 0.001), batch_size=2, num_workers=2, multiprocessing_context="fork")
    before = time.time()
    told = {stall.batch: stall for stall in read(made, [(9, 0.2), (26, 0.3)])}
    first, second = told[4], told[13]
    assert (first.slowest_index, second.slowest_index) == ("9", "26")
    assert first.slowest_us == second.slowest_us == 1_000_000
    assert first.us >= 200_000
    assert second.us >= 300_000
    for stall in (first, second):
        assert stall.held_back >= 1
        assert stall.worker in (0, 1)
        assert stall.epoch == 0
        assert before <= stall.at <= time.time()
    assert first.at < second.at


def gated(stack_after: float) -> Any:
    dataset = Gated(20, [5], 0.001)
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork", stack_after=stack_after)


def test_the_culprit_s_stack_comes_with_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Nursery.stack_of
    # How soon a worker of a busy machine answers is not what this is about.
    monkeypatch.setattr(Nursery, "stack_of", lambda nursery, key, _patience: real(nursery, key, PATIENCE))
    told = {stall.batch: stall for stall in read(gated(0.05), [(5, 0)], lambda stall: stall.stack)}
    assert told[5].stack.count("in dawdle") == 1, "once"


def test_no_stack_comes_with_a_short_one() -> None:
    told = {stall.batch: stall for stall in read(gated(3600), [(5, 0.05)])}
    assert told[5].stack == ""


class GatedShards(IterableDataset[Any]):
    """The first shard's fourth sample waits."""

    def __init__(self) -> None:
        self.gates = {3: torch.multiprocessing.get_context("fork").Event()}

    def __iter__(self) -> Iterator[int]:
        shard = get_worker_info().id  # type: ignore[union-attr]
        for number in range(8):
            if (shard, number) == (0, 3):
                self.gates[3].wait(PATIENCE)
                CLOCK.pass_ms(199)
            CLOCK.pass_ms(1)
            yield shard * 100 + number


def test_a_stream_s_culprit_is_named_by_shard_and_number() -> None:
    dataset = GatedShards()
    made = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="fork")

    iterator: Any = iter(made)
    watch = iterator.pool.conductor.observer.stalls

    def let_through() -> None:
        until(lambda: (stall := watch.open) is not None and stall.batch == 2)
        time.sleep(0.05)
        dataset.gates[3].set()

    helper = threading.Thread(target=let_through)
    helper.start()
    assert len(list(iterator)) == 8
    helper.join()
    made.close()
    stalls = [event for event in made._penstock.ledger.take_events() if isinstance(event, Stall)]
    (stall,) = (each for each in stalls if each.batch == 2)
    assert (stall.worker, stall.slowest_index, stall.slowest_us) == (0, "3 of shard 0", 200_000)


def test_without_an_order_nothing_is_held_back() -> None:
    dataset = Gated(20, [3], 0.001)
    made = DataLoader(dataset, num_workers=2, multiprocessing_context="fork", in_order=False)
    came = []
    for batch in made:
        came.append(int(batch))
        if len(came) == 19:
            dataset.gates[3].set()
    assert sorted(came) == list(range(20))
    assert made.stats().stalls.count == made.stats().times.reorder_stall_us == 0
    made.close()


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), ("soon", TypeError), (True, TypeError)]
)
def test_a_bad_setting_is_named(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"stack_after must be .* but got stack_after="):
        DataLoader(Gated(2, []), stack_after=value)
