"""What only worker threads do, and what they say of what they cannot promise."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
import torch.utils.data
from penstock import get_worker_info
from penstock.pool.crews.crew import Order
from penstock.pool.crews.reports import Born, Up
from penstock.pool.crews.threads import ThreadCrew
from penstock.pool.inbox import Inbox
from penstock.pool.tasks import Recipe
from penstock.usage import apart, training_ns
from torch.utils.data import Dataset

from tests.loader.scenarios import Held, Loaders
from tests.loader.support import Samples, Stream, wait_until, workers_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
DataLoader: Any = penstock.DataLoader


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


def same(samples: list[Any]) -> list[Any]:
    return samples


def test_threads_copy_nothing(loaders: Loaders) -> None:
    things = [object() for _ in range(6)]
    made = loaders(things, batch_size=2, num_workers=2, workers="thread", collate_fn=same)
    assert [each for batch in made for each in batch] == things
    assert made.stats().queues.slots_bytes == 0


class Told(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        drawn = (info.rng.random_generator.random(), info.rng.numpy_generator.random())
        return info.id, info.num_workers, info.worker_method, threading.current_thread().name, drawn, index


def test_a_thread_is_told_who_it_is_and_has_its_own_generators(loaders: Loaders) -> None:
    runs = []
    for count in (1, 3):
        torch.manual_seed(2)
        made = loaders(Told(), batch_size=None, num_workers=count, workers="thread")
        told = list(made)
        assert {(count, "thread", f"loader-worker-{number}") for number in range(count)} >= {
            tuple(row[1:4]) for row in told
        }
        runs.append([row[4:] for row in told])
    assert runs[0] == runs[1], "the numbers depend on the batch alone"
    assert get_worker_info() is None, "here it is nobody"


@pytest.mark.parametrize("module", ["torch", "random", "numpy.random"])
def test_global_random_numbers_in_threads_are_noticed(loaders: Loaders, module: str) -> None:
    made = loaders(Globally(module), num_workers=1, workers="thread")
    with pytest.warns(UserWarning, match=f"global generator of `{module}`"):
        list(made)


class Globally(Samples):
    def __getitem__(self, key: int) -> Any:
        import numpy as np

        draws = {"torch": lambda: torch.rand(1).item(), "random": random.random, "numpy.random": np.random.rand}
        return draws[self.kind]()


def test_a_thread_that_hangs_is_said_to_stay(loaders: Loaders, tmp_path: Path, caplog: Any) -> None:
    dataset = Held(tmp_path, {0}, 4)
    made = loaders(dataset, num_workers=1, workers="thread", collate_fn=len)
    iterator: Any = iter(made)
    dataset.await_held(0)
    (worker,) = workers_of(iterator)
    iterator.close(grace=0.01)
    assert "a thread, is still at batch 0" in caplog.text
    dataset.let_go()
    worker.thread.join(PATIENCE)
    assert not worker.thread.is_alive()


class Collecting(Samples):
    """Garbage is collected while its sample 1 is made, and nowhere else."""

    def __init__(self) -> None:
        super().__init__(length=400)
        self.left = threading.Event()
        self.collected = threading.Event()

    def __getitem__(self, key: int) -> Any:
        if key == 1:
            assert self.left.wait(PATIENCE)
            gc.collect()
            self.collected.set()
        return key


def test_an_iterator_that_is_garbage_in_its_own_thread_does_not_wait_for_it(caplog: Any) -> None:
    dataset = Collecting()
    gc.disable()
    try:
        iterator: Any = iter(DataLoader(dataset, num_workers=1, workers="thread"))
        next(iterator)
        over, cycle = iterator.pool.conductor.over, [iterator]
        cycle.append(cycle)
        del iterator, cycle
        dataset.left.set()
        assert dataset.collected.wait(PATIENCE)
        assert over.wait(PATIENCE)
    finally:
        gc.enable()
    assert "still at batch" not in caplog.text, "its pool has waited for it, and it for its pool"


class AtOnce(Samples):
    """Samples of no known size, each of which waits until so many are being made."""

    def __init__(self, workers: int) -> None:
        super().__init__(length=3 * workers)
        self.together = threading.Barrier(workers, timeout=PATIENCE)

    def __getitem__(self, key: int) -> Any:
        if key >= self.together.parties:
            self.together.wait()
        return str(key)


def test_batches_that_do_not_tell_their_size_are_made_beside_each_other(loaders: Loaders) -> None:
    made = loaders(AtOnce(3), num_workers=3, workers="thread", batch_size=None, memory_budget=1 << 20)
    assert list(made) == [str(key) for key in range(9)]


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


PROCESSORS = """
import threading, penstock, torch
def elsewhere(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()
elsewhere(torch.set_num_threads, 2)  # for all threads that have not computed yet, as this one
class Asked(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.get_num_threads()
made = penstock.DataLoader(Asked(), num_workers=2, workers="thread", batch_size=None)
assert list(made) == [1] * 4
assert torch.get_num_threads() == 2, "training's own"
elsewhere(lambda: print(torch.get_num_threads()))
"""


def test_worker_threads_take_one_processor_and_leave_the_others_to_training() -> None:
    ran = run(PROCESSORS)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("2\n", "", 0), "also to threads that come later"


EXIT = """
import threading, penstock, torch
busy = threading.Event()
class Computing(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        matrix = torch.rand(1500, 1500)
        while index:
            busy.set()
            matrix = matrix @ matrix
            matrix /= matrix.norm()
        return index
made = penstock.DataLoader(Computing(), num_workers=2, workers="thread", batch_size=None)
iterator = iter(made)
print(next(iterator))
busy.wait()
"""


@pytest.mark.parametrize("last", ["", "iterator.close(grace=0.01)"], ids=["open", "closed"])
def test_the_interpreter_ends_while_threads_compute(last: str) -> None:
    """It would abort where they come back from torch's functions, also when their loader was closed before."""
    ran = run(EXIT + last)
    assert (ran.stdout, ran.returncode) == ("0\n", 0)
    assert last or not ran.stderr


HANGING = """
import threading, time, penstock
hanging = threading.Event()
class Hanging:
    def __len__(self): return 100
    def __getitem__(self, index):
        if index:
            hanging.set()
            time.sleep(100_000)
        return index
iterator = iter(penstock.DataLoader(Hanging(), num_workers=1, workers="thread", batch_size=None))
print(next(iterator))
hanging.wait()
"""


def test_the_interpreter_ends_while_a_thread_hangs() -> None:
    ran = run(HANGING)
    assert (ran.stdout, ran.returncode) == ("0\n", 0)
    assert "worker 0, a thread, is still at batch 1" in ran.stderr


def test_nothing_is_told_of_a_thread_before_its_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is up before the conductor, which starts it, has gone on."""
    inbox, begin, told = Inbox(), threading.Thread.start, list[Any]()

    def is_up() -> bool:
        told.extend(inbox.wait(0))
        return any(isinstance(each, Up) for each in told)

    def start(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name.startswith("loader-worker"):
            wait_until(is_up, "the worker")

    monkeypatch.setattr(threading.Thread, "start", start)
    crew = ThreadCrew(inbox, 1)
    kept = crew.revive(Recipe(Samples(), False, True, same, False, 1, None))
    worker: Any = crew.grow(1, 0, 1, 0, Order.RUN)
    told += inbox.wait(0)
    assert [type(each) for each in told] == [Born, Up]
    crew.see_off()
    worker.thread.join(PATIENCE)
    crew.end()
    inbox.close()
    del kept


class Uncopied(Stream):
    def __deepcopy__(self, _memo: Any) -> Any:
        raise TypeError("it holds a socket")


def test_a_stream_that_cannot_be_copied_is_refused(loaders: Loaders) -> None:
    with pytest.raises(TypeError, match=r"workers='thread' gives every worker a copy.*it holds a socket"):
        iter(loaders(Uncopied(), num_workers=1, workers="thread"))


@pytest.mark.parametrize(("value", "error"), [("threads", ValueError), (None, TypeError), (3, TypeError)])
def test_a_kind_that_there_is_not_is_named(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"workers must be .* but got workers="):
        DataLoader(Samples(), workers=value)


def collate_with_torch(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


def test_torchs_own_collate_makes_no_files_in_shared_memory(loaders: Loaders) -> None:
    made = loaders(Samples("tensor", 6), num_workers=1, workers="thread", collate_fn=collate_with_torch)
    assert not any(batch.is_shared() for batch in made)


class Forked(Dataset[Any]):
    """A worker thread that forks: what the child is told of itself."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, b"nobody" if get_worker_info() is None else b"a thread")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            return pipe.read().decode()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_worker_thread_is_no_worker(loaders: Loaders) -> None:
    assert list(loaders(Forked(), batch_size=None, num_workers=1, workers="thread")) == ["nobody"]


class Changing(Samples):
    offset = 0

    def __getitem__(self, key: int) -> Any:
        return key + self.offset


@pytest.mark.filterwarnings("error")
def test_persistent_threads_have_the_dataset_as_training_has_it(loaders: Loaders) -> None:
    dataset = Changing(length=4)
    made = loaders(dataset, num_workers=2, workers="thread", persistent_workers=True)
    assert [batch.item() for batch in made] == [0, 1, 2, 3]
    dataset.offset = 10
    assert [batch.item() for batch in made] == [10, 11, 12, 13]


def test_the_time_of_worker_threads_is_not_trainings() -> None:
    before, own = training_ns(), 0

    def work() -> None:
        nonlocal own
        with apart():
            sum(range(3_000_000))
            own = __import__("time").thread_time_ns()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert own > 10_000_000
    assert training_ns() - before < own / 2


def test_memory_of_threads_is_not_known(loaders: Loaders) -> None:
    made = loaders(Samples(length=40), num_workers=1, workers="thread")
    iterator = iter(made)
    next(iterator)
    assert "workers.rss" in list(made.stats().unknown or ())
    assert {worker.pid for worker in made.stats().workers} == {os.getpid()}


def test_what_a_thread_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample_timeout needs workers=.process., because a thread cannot be ended"):
        DataLoader(Samples(), num_workers=1, workers="thread", on_error="skip", sample_timeout=1.0)


class Counted(Samples):
    """Counts how often each sample was made."""

    def __init__(self) -> None:
        super().__init__(length=8)
        self.made: list[int] = []

    def __getitem__(self, key: int) -> Any:
        self.made.append(key)
        return key


def test_cached_samples_are_made_once_for_all_threads(loaders: Loaders) -> None:
    dataset = Counted()
    made = loaders(penstock.cached(dataset), num_workers=2, workers="thread", persistent_workers=True)
    assert [[batch.item() for batch in made] for _ in range(3)] == [list(range(8))] * 3
    assert sorted(dataset.made) == list(range(8))
