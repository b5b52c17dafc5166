"""What the end of an epoch waits for, and what it does not: workers' exit handlers, but no strangers."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
import weakref
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock.pool.conductor import Conductor

from tests.loader.support import DataLoader, Samples, descendants
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class WithHelper(Samples):
    """Every worker forks a process that outlives it."""

    def __init__(self, length: int, folder: Path) -> None:
        super().__init__("int", length)
        self.folder = folder

    def __getitem__(self, key: Any) -> Any:
        mark = self.folder / str(os.getpid())
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            if (pid := os.fork()) == 0:
                signal.alarm(int(PATIENCE))  # it ends, even if the test cannot end it
                signal.pause()
                os._exit(0)
            mark.write_text(str(pid))
        return super().__getitem__(key)


@pytest.mark.parametrize("how", ["end", "break", "close"])
def test_a_worker_s_own_child_is_not_waited_for(how: str, tmp_path: Path) -> None:
    made = DataLoader(WithHelper(8, tmp_path), num_workers=2)
    iterator = iter(made)
    next(iterator)
    if how == "end":
        list(iterator)
    elif how == "close":
        made.close()
    del iterator
    made.close()  # would not return: they wait for ever
    helpers = [int(mark.read_text()) for mark in tmp_path.iterdir()]
    assert helpers
    for helper in helpers:
        os.kill(helper, signal.SIGKILL)


class Resource(Samples):
    """A worker binds an address that only one process may have, holds much memory, and writes a file when it leaves."""

    def __init__(self, folder: Path) -> None:
        super().__init__("int", 8)
        self.folder = folder

    def begin(self, worker: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        # In the namespace that has no files: nobody else on this machine has the name, and it goes with its process.
        self.socket.bind(f"\0{self.folder}/{worker}")
        self.memory = bytearray(os.urandom(1) * 100_000_000)
        util.Finalize(None, self.end, exitpriority=10)

    def end(self) -> None:
        time.sleep(0.05)
        (self.folder / str(os.getpid())).touch()


def test_when_an_epoch_has_ended_its_workers_have_done_all_that_they_do(tmp_path: Path) -> None:
    dataset = Resource(tmp_path)
    made = DataLoader(dataset, num_workers=2, worker_init_fn=dataset.begin)
    for epoch in range(1, 6):
        assert len(list(made)) == 8, "the addresses are free again"
        assert len(list(tmp_path.iterdir())) >= epoch
    made.close()


def linger(_worker: int) -> None:
    threading.Thread(target=time.sleep, args=(0.3,)).start()


def test_pools_that_end_slowly_do_not_pile_up() -> None:
    before = descendants(os.getpid())
    made = DataLoader(Samples(length=4), num_workers=2, worker_init_fn=linger)
    for _ in range(5):
        list(made)
        assert len(descendants(os.getpid()) - before) <= 2 * 3
    made.close()


def test_a_pool_collected_in_its_own_pin_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.pinning import PinStage

    collected = threading.Event()
    real = PinStage._pin

    def pin_and_collect(stage: PinStage, finished: Any) -> int | None:
        nbytes = real(stage, finished)
        if dropped.is_set():
            gc.collect()
            collected.set()
        time.sleep(0.01)
        return nbytes

    dropped = threading.Event()
    monkeypatch.setattr(PinStage, "_pin", pin_and_collect)
    gc.collect()
    gc.disable()
    try:
        with pytest.warns(UserWarning, match="pin_memory"):
            iterator: Any = iter(DataLoader(Samples(length=400), num_workers=1, pin_memory=True))
        next(iterator)
        conductor = iterator.pool.conductor
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        dropped.set()
        assert collected.wait(PATIENCE)
    finally:
        gc.enable()
    conductor.join(PATIENCE)
    assert not conductor.is_alive()


def test_an_ended_pool_and_its_dataset_need_no_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        dataset = Samples(length=6)
        made = DataLoader(dataset, num_workers=1)
        list(made)
        made.close()
        watch = weakref.ref(dataset)
        del made, dataset
        assert watch() is None
    finally:
        gc.enable()


def test_a_pool_that_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_conductor: Any) -> None:
        raise RuntimeError("can't start new thread")

    made = DataLoader(Samples(length=6), num_workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(Conductor, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            iter(made)
    assert len(list(made)) == 6
    made.close()


class Slow(Samples):
    def __getitem__(self, key: Any) -> Any:
        time.sleep(0.02)
        return torch.tensor(key)


def test_close_from_many_threads_at_once() -> None:
    made = [DataLoader(Slow(length=40), num_workers=1) for _ in range(4)]
    iterators = [iter(each) for each in made]
    for iterator in iterators:
        next(iterator)
    problems: list[BaseException] = []

    def close(loader: Any) -> None:
        try:
            loader.close()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=close, args=(each,)) for each in made for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
