"""Ctrl-C at the worst moments: it is seen, and whatever was begun has one owner who ends it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from penstock.iteration.pooled import PooledIterator
from penstock.pinning import PinStage
from penstock.pool.conductor import Conductor
from penstock.pool.pool import Pool
from penstock.pool.signals import Doorbell, Latch
from penstock.telemetry.observer import PoolObserver

from tests.loader.scenarios import Held
from tests.loader.support import DataLoader, Samples, descendants, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@contextmanager
def interrupted_in(*functions: Callable[..., Any]) -> Iterator[None]:
    """Ctrl-C comes when this thread is in those functions, which wait: neither before nor too late."""
    thread = threading.get_ident()
    done = threading.Event()

    def is_there() -> bool:
        frame: FrameType | None = sys._current_frames()[thread]
        stack = set()
        while frame is not None:
            stack.add(frame.f_code)
            frame = frame.f_back
        return {function.__code__ for function in functions} <= stack

    def interrupt() -> None:
        wait_until(lambda: is_there() or done.is_set(), f"a wait in {functions}")
        if not done.is_set():
            signal.pthread_kill(thread, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        done.set()
        helper.join()


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


def test_after_an_interrupted_close_the_next_one_waits(tmp_path: Path) -> None:
    dataset = Held(tmp_path, {2, 3})
    made = DataLoader(dataset, num_workers=2)
    before = descendants(os.getpid())
    iterator = iter(made)
    next(iterator)
    dataset.await_holders(2)  # close has to wait for them
    started = descendants(os.getpid()) - before
    assert len(started) >= 3
    with interrupted_in(Pool.close, Latch.wait):
        made.close()
    made.close()
    assert not started & descendants(os.getpid())


def test_an_interrupted_wait_does_not_end_the_pool(tmp_path: Path) -> None:
    dataset = Held(tmp_path, {0, 1}, 4)
    made = DataLoader(dataset, num_workers=2)
    iterator = iter(made)
    with interrupted_in(Pool._wait):
        next(iterator)
    dataset.let_go()
    assert [int(index) for index, _ in iterator] == [0, 1, 2, 3]
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


def test_an_interrupt_in_a_finalizer_comes_again(tmp_path: Path) -> None:
    dataset = Held(tmp_path, {1})
    made = DataLoader(dataset, num_workers=1)
    iterator = iter(made)
    next(iterator)
    dataset.await_held(1)
    with interrupted_in(PooledIterator.__del__, Latch.wait):
        del iterator  # waits for the worker's batch; what is raised there is lost
        time.sleep(PATIENCE)
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
            list(iterator)  # there are more batches than are finished ahead
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
    wait_until(lambda: not started & descendants(os.getpid()), "the end of its processes")


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
        patched.setattr(PoolObserver, "epoch_ended", fail)
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


HANDLER_THAT_RAISES = """
import random, signal, sys
import torch
from penstock import DataLoader
from torch.utils.data import Dataset

class Interrupted(Exception): pass

class Numbers(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index): return torch.full((3,), index)

def handler(number, frame):
    arm()
    while frame is not None:
        if frame.f_code.co_name == "__next__" and "penstock" in frame.f_code.co_filename:
            raise Interrupted
        frame = frame.f_back

choose = random.Random(3)

def arm():
    signal.setitimer(signal.ITIMER_REAL, choose.uniform(2e-5, 4e-4))

if __name__ == "__main__":
    sampler = list(range(4000)) if sys.argv[1] == "list" else None
    workers, persistent = int(sys.argv[2]), sys.argv[3] == "True"
    made = DataLoader(
        Numbers(), batch_size=4, num_workers=workers, sampler=sampler, persistent_workers=persistent,
        shuffle=sys.argv[1] == "shuffle",
    )
    epochs = interrupts = 0
    while interrupts < 50:
        seen = []
        iterator = iter(made)
        # What is imported at the first one takes longer than the timer lets it.
        seen.append(next(iterator)[:, 0].tolist())
        signal.signal(signal.SIGALRM, handler)
        arm()
        while True:
            try:
                for batch in iterator:
                    seen.append(batch[:, 0].tolist())
                break
            except Interrupted:
                interrupts += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a last one may be on its way
        signal.setitimer(signal.ITIMER_REAL, 0)
        epochs += 1
        if sys.argv[1] == "shuffle":
            assert sorted(index for batch in seen for index in batch) == list(range(4000))
        else:
            assert seen == [list(range(at, at + 4)) for at in range(0, 4000, 4)]
    assert made.stats().batches == 1000 * epochs
    print("all there")
"""


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("sampler", ["torch's", "shuffle", "list"])
def test_a_signal_handler_that_raises_in_next_costs_no_batch(
    tmp_path: Path, sampler: str, workers: int, persistent: bool
) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(HANDLER_THAT_RAISES)
    done = subprocess.run(
        [sys.executable, str(script), sampler, str(workers), str(persistent)],
        capture_output=True, text=True, check=False, timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all there\n"
