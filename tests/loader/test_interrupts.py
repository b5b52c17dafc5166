"""Ctrl-C at the worst moments: it is seen, and whatever was begun has one owner who ends it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from penstock.pinning import PinStage
from penstock.pool.conductor import Conductor
from penstock.pool.pool import Pool
from penstock.pool.signals import Doorbell
from penstock.telemetry.observer import Observer

from tests.loader.support import DataLoader, Samples, descendants

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Slow(Samples):
    def __getitem__(self, key: Any) -> Any:
        time.sleep(0.6)
        return super().__getitem__(key)


def interrupt_soon(seconds: float = 0.2) -> None:
    threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()


def test_a_bell_that_was_interrupted_rings_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Doorbell()

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bell.ring()
    bell.ring()
    assert os.read(bell.fileno(), 8)
    bell.close()


def test_after_an_interrupted_close_the_next_one_waits() -> None:
    made = DataLoader(Slow(length=40), num_workers=2)
    before = descendants(os.getpid())
    iterator = iter(made)
    next(iterator)
    started = descendants(os.getpid()) - before
    assert len(started) >= 3
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        made.close()
    made.close()
    assert not started & descendants(os.getpid())


def test_an_interrupted_wait_does_not_end_the_pool() -> None:
    made = DataLoader(Slow(length=4), num_workers=2)
    iterator = iter(made)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [int(batch) for batch in iterator] == [0, 1, 2, 3]
    made.close()


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("what", [Conductor, PinStage])
def test_a_thread_that_is_interrupted_when_it_starts(what: Any, started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it runs or not, nobody knows."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name != {Conductor: "loader-conductor", PinStage: "loader-pin"}[what]:
            real(thread)
            return
        if started:
            real(thread)
        raise KeyboardInterrupt

    made = DataLoader(Samples(length=6), num_workers=1, pin_memory=True)
    with monkeypatch.context() as patched, pytest.warns(UserWarning, match="pin_memory"):
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            iter(made)
    with pytest.warns(UserWarning, match="pin_memory"):
        assert len(list(made)) == 6
    made.close()


def test_a_pool_that_nobody_got_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C came between the pool's birth and the moment at which its iterator had it."""
    from penstock.iteration import pooled

    def lost(settings: Any) -> Pool:
        Pool(settings)
        raise KeyboardInterrupt

    made = DataLoader(Samples(length=6), num_workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(pooled, "Pool", lost)
        with pytest.raises(KeyboardInterrupt):
            iter(made)


def test_an_interrupt_in_a_finalizer_comes_again() -> None:
    made = DataLoader(Slow(length=40), num_workers=1)
    iterator = iter(made)
    next(iterator)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        del iterator  # waits for the worker's batch; what is raised there is lost
        time.sleep(20)
    made.close()


def test_a_persistent_pool_that_was_ended_by_an_interrupt_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = DataLoader(Samples(length=6), num_workers=1, persistent_workers=True)
    iterator = iter(made)
    next(iterator)
    state = made.state_dict()
    made.load_state_dict(state)
    with monkeypatch.context() as patched:
        patched.setattr(Conductor, "start", interrupted_start)
        with pytest.raises(KeyboardInterrupt):
            iter(made)
    assert [int(batch) for batch in made] == [1, 2, 3, 4, 5], "the state is not forgotten either"
    assert len(list(made)) == 6
    made.close()


def interrupted_start(_conductor: Conductor) -> None:
    raise KeyboardInterrupt


def test_a_pool_whose_conductor_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = DataLoader(Samples(length=600), num_workers=1, persistent_workers=True)
    iterator = iter(made)
    next(iterator)

    def fail(_conductor: Conductor) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Conductor, "_step", fail)
        with pytest.raises(RuntimeError, match="conductor thread failed"):
            list(iterator)
    assert len(list(made)) == 600
    made.close()


class Owner:
    """A training class as many are: its loader calls a method of its own."""

    def __init__(self, persistent: bool) -> None:
        self.loader = DataLoader(
            Samples(length=8), num_workers=1, persistent_workers=persistent, collate_fn=self.collate
        )
        self.iterator: Iterator[Any] = iter(self.loader)
        next(self.iterator)

    def collate(self, samples: list[Any]) -> Any:
        return samples


@pytest.mark.parametrize("persistent", [False, True])
def test_a_pool_that_only_its_own_recipe_refers_to_is_garbage(persistent: bool) -> None:
    before = descendants(os.getpid())
    owner = Owner(persistent)
    started = descendants(os.getpid()) - before
    assert started
    del owner
    gc.collect()
    deadline = time.monotonic() + 20
    while started & descendants(os.getpid()):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.02)


def test_the_collector_may_end_a_pool_while_a_lock_of_threading_s_is_held() -> None:
    """`threading.enumerate` holds one when it allocates, which the end of a thread needs, too."""
    with pytest.warns(UserWarning, match="pin_memory"):
        iterator: Any = iter(DataLoader(Samples(length=400), num_workers=1, pin_memory=True))
    next(iterator)
    conductor = iterator.pool.conductor
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        del iterator  # would not return
    assert conductor.over.is_set()


def test_a_pool_whose_end_meets_an_error_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descendants(os.getpid())
    made = DataLoader(Samples(length=60), num_workers=1)
    iterator = iter(made)
    next(iterator)
    started = descendants(os.getpid()) - before

    def fail(_observer: Any, _workers: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.PytestUnhandledThreadExceptionWarning)
        patched.setattr(Observer, "epoch_ended", fail)
        patched.setattr(threading, "excepthook", lambda _about: None)
        made.close()
    assert started and not started & descendants(os.getpid())


def test_an_interrupt_while_the_zygote_is_forked_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import popen_fork

    real = popen_fork.Popen._launch  # type: ignore[attr-defined]

    def launch(popen: Any, process: Any) -> None:
        real(popen, process)
        signal.raise_signal(signal.SIGINT)

    made = DataLoader(Samples(length=6), num_workers=1, multiprocessing_context="fork")
    with monkeypatch.context() as patched:
        patched.setattr(popen_fork.Popen, "_launch", launch)
        with pytest.raises(KeyboardInterrupt):
            iter(made)
    assert len(list(made)) == 6
    made.close()
