"""Where the training thread's time goes, with real pools: known schedules have the known answer, and all adds up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch.multiprocessing
from penstock.pinning import PinStage
from penstock.pool.observer import Cause
from penstock.protocol import Times
from penstock.telemetry.times import TimeAccount
from torch.utils.data import IterableDataset, get_worker_info

from tests.loader.support import DataLoader, Samples, Stream
from tests.loader.telemetry.datasets import Gated, Unhurried
from tests.loader.telemetry.servers import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

HELD = 0.2
"""Seconds for which something is held up. It may last longer, never shorter: the times told are at least as long."""
ROUNDED = len(Cause)
"""µs that may be missing: the time of every cause is told in whole µs."""


def total(times: Times) -> int:
    """Without the sampler, which `iter()` draws from here, before our clock begins."""
    return sum(getattr(times, kind) for kind in Times.__struct_fields__ if kind != "sampler_us")


class Moments:
    """When the training thread called its account, by the account's own clock: from the first call to the last one
    every moment has to be booked. Our own clock would show what the machine did between our look at it and theirs.
    """

    def __init__(self, account: TimeAccount) -> None:
        self.enters = 0
        self._runs = False
        self._at: list[int] = []
        self._account = account
        for name in ("enter", "exit", "stop"):
            setattr(account, name, self._listening(name, getattr(account, name)))

    @property
    def us(self) -> int:
        """From the first to the last."""
        return (self._at[-1] - self._at[0]) // 1000

    def end(self) -> None:
        """Listen no more."""
        for name in ("enter", "exit", "stop"):
            delattr(self._account, name)

    def _listening(self, name: str, real: Callable[[int], Any]) -> Callable[[int], Any]:
        def call(now: int) -> Any:
            if name == "enter":
                self.enters += 1
                self._runs = True
            if self._runs:
                self._at.append(now)
            if name == "stop":
                self._runs = False  # the `exit` that follows books nothing
            return real(now)

        return call


@dataclass
class Run:
    times: Times
    wall: float
    """µs from the first next() to the end of the epoch, by our own clock."""
    inside: float
    """µs of it within next()."""
    calls: int
    """Of next()."""
    moments: Moments


def run(loader: Any, step: Callable[[int], object] = lambda _number: None, iterator: Any = None) -> Run:
    """One epoch, timed by us as the loader times it."""
    moments = Moments(loader._penstock.ledger.times)
    iterator = iter(loader) if iterator is None else iterator
    began = time.monotonic()
    inside, number = 0.0, 0
    while True:
        entered = time.monotonic()
        try:
            next(iterator)
        except StopIteration:
            break
        finally:
            left = time.monotonic()
            inside += left - entered
        step(number)
        number += 1
    moments.end()
    return Run(loader.stats().epoch_times, (left - began) * 1e6, inside * 1e6, number + 1, moments)


def assert_adds_up(*runs: Run) -> None:
    """Nothing is lost and nothing counted twice, and all of it lies within what we saw."""
    for each in runs:
        assert each.moments.enters == each.calls
        assert 0 <= each.moments.us - total(each.times) <= ROUNDED
        assert total(each.times) <= each.wall + 1
        assert total(each.times) - each.times.compute_us <= each.inside + 1


def holding(loader: Any, kind: str, seen: Callable[[], object], let_go: Callable[[], object]) -> threading.Thread:
    """When `seen` is true and the time of this kind grows, which it then does until somebody is let go: holds that up
    for a while.
    """

    def spent() -> int:
        value: int = getattr(loader.stats().times, kind)
        return value

    def work() -> None:
        until(seen)
        before = spent()
        until(lambda: spent() > before)
        time.sleep(HELD)
        let_go()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_slow_sample_is_a_reorder_stall() -> None:
    dataset = Gated(12, [3])
    made = DataLoader(dataset, num_workers=2, multiprocessing_context="fork")
    iterator: Any = iter(made)
    watch = iterator.pool.conductor.observer.stalls

    def is_stalled() -> bool:
        return watch.open is not None and watch.open.batch == 3

    helper = holding(made, "reorder_stall_us", is_stalled, dataset.open)
    found = run(made, iterator=iterator)
    helper.join()
    assert_adds_up(found)
    assert found.times.reorder_stall_us >= HELD * 1e6
    assert found.times.pin_wait_us == found.times.paused_us == 0
    assert made.stats().stalls.us >= HELD * 1e6
    made.close()


def test_the_only_batch_that_is_late_is_starvation() -> None:
    """Nothing is finished behind it: no order holds anything up."""
    dataset = Gated(6, [3])
    made = DataLoader(dataset, num_workers=1, multiprocessing_context="fork")
    helper = holding(made, "starvation_us", lambda: made.stats().batch == 3, dataset.open)
    found = run(made)
    helper.join()
    assert_adds_up(found)
    assert found.times.starvation_us >= HELD * 1e6
    assert found.times.reorder_stall_us == found.times.pin_wait_us == found.times.paused_us == 0
    made.close()


def test_a_slow_consumer_computes() -> None:
    made = DataLoader(Samples(length=20), num_workers=2)
    found = run(made, lambda _number: time.sleep(0.03))
    assert_adds_up(found)
    assert found.times.compute_us >= 20 * 30_000
    made.close()


def all_is_paused(made: Any) -> bool:
    """All workers pause, and training waits for nothing else."""
    before = made.stats()
    if any(worker.state != "paused" for worker in before.workers):
        return False
    time.sleep(0.005)
    return only_paused_since(before.times, made.stats().times)


def only_paused_since(before: Times, after: Times) -> bool:
    others = [kind for kind in Times.__struct_fields__ if kind != "paused_us"]
    same = all(getattr(before, kind) == getattr(after, kind) for kind in others)
    return same and after.paused_us > before.paused_us


def test_a_paused_pool_is_paused_and_not_starving() -> None:
    made = DataLoader(Samples(length=60), num_workers=2, prefetch_factor=2)
    seen: list[Times] = []

    def work() -> None:
        until(lambda: all_is_paused(made))
        seen.append(made.stats().times)
        time.sleep(HELD)
        seen.append(made.stats().times)
        made.resume()

    helper = threading.Thread(target=work)

    def step(number: int) -> None:
        if number == 10:
            made.pause()
            helper.start()

    found = run(made, step)
    helper.join()
    assert_adds_up(found)
    assert only_paused_since(*seen)
    assert found.times.paused_us >= HELD * 1e6
    made.close()


class Slow(Unhurried):
    seconds = 0.1


def test_a_pause_that_meets_workers_at_work_is_a_pause() -> None:
    """The last batch comes a moment before its worker says that it pauses."""
    made = DataLoader(Slow(length=24), num_workers=2)

    def work() -> None:
        for _ in range(3):
            until(lambda: made.stats().workers and made.stats().workers[0].state == "fetching")
            made.pause()
            until(lambda: all_is_paused(made))
            before = made.stats().times
            time.sleep(HELD)
            seen.append((before, made.stats().times))
            made.resume()

    seen: list[tuple[Times, Times]] = []
    helper = threading.Thread(target=work)
    helper.start()
    found = run(made)
    helper.join()
    assert_adds_up(found)
    assert len(seen) == 3 and all(only_paused_since(*each) for each in seen)
    made.close()


class Gate:
    """Keeps a worker at its start, or a dataset at its first sample, until it is opened."""

    def __init__(self) -> None:
        self.event = torch.multiprocessing.get_context("fork").Event()

    def __call__(self, _worker: int = 0) -> None:
        self.event.wait(PATIENCE)

    def open(self) -> None:
        self.event.set()


def test_before_the_first_batch_it_is_startup() -> None:
    gate = Gate()
    made = DataLoader(Samples(length=8), num_workers=2, worker_init_fn=gate, multiprocessing_context="fork")
    helper = holding(made, "startup_us", lambda: True, gate.open)
    found = run(made)
    helper.join()
    assert_adds_up(found)
    assert found.times.startup_us >= HELD * 1e6
    made.close()


@pytest.mark.filterwarnings("ignore:'pin_memory'")
def test_a_slow_pin_stage_is_pin_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PinStage._pin
    go_on = threading.Event()

    def slow(stage: PinStage, finished: Any) -> int | None:
        if finished.task.batch == 3:
            go_on.wait(PATIENCE)
        return real(stage, finished)

    monkeypatch.setattr(PinStage, "_pin", slow)
    made = DataLoader(Samples(length=20), num_workers=2, pin_memory=True)
    helper = holding(made, "pin_wait_us", lambda: made.stats().batch == 3, go_on.set)
    found = run(made)
    helper.join()
    assert_adds_up(found)
    assert found.times.pin_wait_us >= HELD * 1e6
    pin = made.stats().pin
    assert pin.batches == 20
    assert pin.us >= HELD * 1e6
    made.close()


def test_loading_inline_is_starvation_after_the_first_batch() -> None:
    made = DataLoader(Gated(10, seconds=0.03))
    found = run(made, lambda _number: time.sleep(0.01))
    assert_adds_up(found)
    assert found.times.startup_us >= 30_000
    assert found.times.starvation_us >= 9 * 30_000
    assert found.times.compute_us >= 10 * 10_000
    assert found.times.reorder_stall_us == found.times.pin_wait_us == found.times.paused_us == 0


def shuffled(seconds: float) -> Iterator[Any]:
    for workers, dataset, more in (
        # To foresee an epoch takes time of the sampler's kind, which `total` leaves out.
        (2, Gated(30, seconds=seconds), {"persistent_workers": True, "prefetch_epochs": False}),
        (2, Gated(30, seconds=seconds), {"in_order": False}),
        (2, Stream(length=30), {}),
        (0, Stream(length=30), {}),
    ):
        yield DataLoader(dataset, num_workers=workers, batch_size=2, **more)


def test_every_epoch_adds_up_and_so_do_all_together() -> None:
    for made in shuffled(0.002):
        runs = [run(made, lambda number: time.sleep(0.004 * (number % 3))) for _ in range(3)]
        assert_adds_up(*runs)
        assert total(made.stats().times) == pytest.approx(sum(total(each.times) for each in runs), rel=0.001, abs=50)
        made.close()


@pytest.mark.parametrize("more", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_an_epoch_left_early_stops_the_clock(more: dict[str, Any]) -> None:
    made = DataLoader(Samples(length=50), **more)
    for _ in made:
        break
    before = made.stats().times
    time.sleep(0.05)
    assert made.stats().times == before
    assert len(list(made)) == 50
    assert total(made.stats().epoch_times) < total(made.stats().times)
    made.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_is_closed_stops_the_clock(workers: int) -> None:
    made = DataLoader(Samples(length=50), num_workers=workers)
    iterator = iter(made)
    next(iterator)
    made.close()
    before = made.stats().times
    time.sleep(0.05)
    assert made.stats().times == before
    with pytest.raises(RuntimeError):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_within_another_takes_nothing_from_it(workers: int) -> None:
    made = DataLoader(Samples(length=4), num_workers=workers)
    outer = iter(made)
    before = made.stats().times.sampler_us
    moments = Moments(made._penstock.ledger.times)
    for _ in outer:
        for _ in made:
            time.sleep(0.01)
        time.sleep(0.05)
    times = made.stats().times
    assert times.compute_us >= 4 * 50_000 + 16 * 10_000
    within = times.sampler_us - before  # the inner epochs' samplers are drawn from while the outer clock runs
    assert 0 <= moments.us - total(times) - within <= ROUNDED + 1
    made.close()


def test_the_next_epoch_begins_with_nothing_of_the_one_before() -> None:
    made = DataLoader(Samples(length=8), num_workers=1)
    iterator = iter(made)
    next(iterator)
    time.sleep(0.2)
    iterator = iter(made)
    next(iterator)
    stats = made.stats()
    assert stats.times.compute_us - stats.epoch_times.compute_us >= 200_000
    del iterator
    made.close()


class Broken(Samples):
    def __getitem__(self, key: Any) -> Any:
        if key == 4:
            raise KeyError("broken")
        return super().__getitem__(key)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_raises_disturbs_nothing(workers: int) -> None:
    made = DataLoader(Broken(length=8), num_workers=workers)
    iterator = iter(made)
    moments = Moments(made._penstock.ledger.times)
    came = 0
    while True:
        try:
            next(iterator)
            came += 1
        except KeyError:
            time.sleep(0.1)  # training's own time
        except StopIteration:
            break
    times = made.stats().epoch_times
    assert came == 7
    assert 0 <= moments.us - total(times) <= ROUNDED
    assert times.compute_us >= 100_000
    made.close()


class FirstIsEmpty(IterableDataset[int]):
    """Only the second worker has something to give, when it may."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is not None and info.id == 1:
            self.gate()
            yield from range(4)


def test_the_end_of_a_shard_is_no_batch() -> None:
    dataset = FirstIsEmpty()
    made = DataLoader(dataset, num_workers=2, multiprocessing_context="fork")
    iterator: Any = iter(made)

    def first_has_ended() -> bool:
        workers = made.stats().workers
        return bool(workers) and workers[0].state == "idle"

    helper = holding(made, "startup_us", first_has_ended, dataset.gate.open)
    found = run(made, iterator=iterator)
    helper.join()
    assert_adds_up(found)
    assert found.times.startup_us >= HELD * 1e6
    made.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_goes_on_starts_up_too(workers: int) -> None:
    before = DataLoader(Samples(length=6))
    iterator = iter(before)
    next(iterator)
    dataset = Gated(6, [1])
    made = DataLoader(dataset, num_workers=workers, multiprocessing_context="fork" if workers else None)
    made.load_state_dict(before.state_dict())
    helper = holding(made, "startup_us", lambda: True, dataset.open)
    assert int(next(iter(made))) == 1
    helper.join()
    assert made.stats().times.startup_us >= HELD * 1e6
    made.close()


@pytest.mark.filterwarnings("ignore:.*exited unexpectedly")
def test_after_a_failed_epoch_the_clock_stands_still() -> None:
    made = DataLoader(Slow(length=6), num_workers=1, max_retries=0, worker_init_fn=die)
    iterator = iter(made)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            next(iterator)
    times = made.stats().times
    time.sleep(0.05)
    assert made.stats().times == times
    made.close()


def die(_worker: int) -> None:
    os._exit(7)
