"""What goes wrong arrives in training as what it is, says where, and leaves the loader usable."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from penstock.pool.requests import TakeStack
from torch.utils.data import Dataset, IterableDataset

import loader
from tests.loader.support import (
    DataLoader,
    Samples,
    Stream,
    values,
    wait_until,
    workers_of,
)
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.filterwarnings("ignore:.*(exited unexpectedly|zygote)"),
]


class OddError(Exception):
    """Its constructor is not that of other exceptions."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code, reason)


class MessageError(Exception):
    """Wants its text by name, as torch's own exception wrapper allows for."""

    message = "text"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Faulty(Dataset[int]):
    """Raises at index 5."""

    def __init__(self, error: Any = None, length: int = 12) -> None:
        self.error = ValueError("broken sample") if error is None else error
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise self.error
        return index


def outcomes(iterator: Any) -> list[Any]:
    """All batches of an epoch, with the types of exceptions in the place of those that failed."""
    seen: list[Any] = []
    while len(seen) < 100:
        try:
            seen.append(next(iterator).tolist())
        except StopIteration:
            return seen
        except Exception as error:
            seen.append(type(error))
    raise AssertionError("the epoch does not end")


@pytest.mark.parametrize(
    "error", [ValueError("broken"), KeyError("broken"), OSError(2, "broken"), MessageError("broken")]
)
def test_an_exception_in_the_dataset_arrives_as_its_own_type(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        list(DataLoader(Faulty(error), batch_size=2, num_workers=2))
    text = str(caught.value)
    assert "in __getitem__" in text, "the worker's traceback"
    assert "broken" in text
    assert re.search(r"worker process \d", text)
    assert "batch 2" in text
    assert "sample index 5" in text


def test_a_key_error_is_readable() -> None:
    with pytest.raises(KeyError) as caught:
        list(DataLoader(Faulty(KeyError("some key")), num_workers=1))
    assert "\\n" not in str(caught.value)
    assert str(caught.value).count("\n") > 3


class FaultyThere(Faulty):
    """Its error is made in the worker: it could not be sent there either."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            kind: Any = OddError if self.error == "OddError" else type("LocalError", (Exception,), {})
            raise kind(3, reason="broken") if kind is OddError else kind("broken")
        return index


@pytest.mark.parametrize("name", ["OddError", "LocalError"])
def test_an_exception_that_cannot_be_made_again_becomes_a_runtime_error(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"(?s){name}.*batch 5.*broken"):
        list(DataLoader(FaultyThere(name), num_workers=1))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_next_batch_comes_after_a_broken_one_as_in_torch(workers: int) -> None:
    ours, theirs = (
        outcomes(iter(kind(Faulty(), batch_size=2, num_workers=workers)))
        for kind in (DataLoader, torch.utils.data.DataLoader)
    )
    assert ours == theirs == [[0, 1], [2, 3], ValueError, [6, 7], [8, 9], [10, 11]]


def test_stop_iteration_in_a_map_style_dataset_carries_its_traceback() -> None:
    iterator = iter(DataLoader(Faulty(StopIteration("broken")), batch_size=3, num_workers=1))
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(StopIteration, match=r"(?s)batch 1.*in __getitem__"):
        next(iterator)
    assert values(iterator) == [[6, 7, 8], [9, 10, 11]]


def test_inline_exceptions_are_raised_as_they_are() -> None:
    error = OddError(3, reason="broken")
    with pytest.raises(OddError) as caught:
        list(DataLoader(Faulty(error)))
    assert caught.value is error


def failing_collate(samples: list[int]) -> Any:
    if 5 in samples:
        raise LookupError("cannot collate")
    return torch.tensor(samples)


def failing_init(_: int) -> None:
    raise LookupError("cannot start")


class FaultySampler:
    def __iter__(self) -> Iterator[int]:
        yield 0
        yield 1
        raise LookupError("cannot sample")


class FaultyStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0
        yield 1
        raise LookupError("cannot stream")


class NoIterator(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        raise LookupError("cannot begin")


def test_an_exception_in_collate_fn() -> None:
    iterator = iter(DataLoader(range(8), batch_size=2, num_workers=2, collate_fn=failing_collate))
    with pytest.raises(LookupError, match=r"(?s)batch 2.*failing_collate.*cannot collate"):
        list(iterator)
    assert values(iterator) == [[6, 7]]


@pytest.mark.parametrize("dataset", [Samples(), Stream()], ids=["map", "iterable"])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_exception_in_worker_init_fn(dataset: Any, persistent: bool) -> None:
    made = DataLoader(dataset, num_workers=2, worker_init_fn=failing_init, persistent_workers=persistent)
    for _ in range(2):
        with pytest.raises(LookupError, match=r"(?s)worker process [01].*failing_init.*cannot start"):
            list(made)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_the_sampler(workers: int) -> None:
    iterator = iter(DataLoader(range(8), sampler=FaultySampler(), num_workers=workers))
    seen = []
    with pytest.raises(LookupError, match="cannot sample"):
        for batch in iterator:
            seen.append(batch.item())
    assert seen == [0, 1]
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_exception_in_a_stream() -> None:
    iterator = iter(DataLoader(FaultyStream(), num_workers=2))
    assert outcomes(iterator) == [[0], [0], [1], [1], LookupError, LookupError]


def test_an_exception_in_a_stream_says_where() -> None:
    with pytest.raises(LookupError, match=r"(?s)worker process 0, batch 0, sample 2 of the batch.*cannot stream"):
        list(DataLoader(FaultyStream(), num_workers=1, batch_size=4))


def test_an_exception_in_iter() -> None:
    with pytest.raises(LookupError, match=r"(?s)worker process 0.*cannot begin"):
        list(DataLoader(NoIterator(), num_workers=1))


def test_a_broken_batch_does_not_harm_later_epochs() -> None:
    made = DataLoader(Faulty(), num_workers=2, persistent_workers=True)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken sample"):
            list(made)


# -- timeouts -----------------------------------------------------------------------------------------------


class Sleepy(Dataset[int]):
    """Hangs at index `at` until its file appears; other samples take their time if it is steady."""

    def __init__(self, at: int, file: str, steady: bool = True) -> None:
        self.at, self.file, self.steady = at, file, steady

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            linger_here(self.file)
        elif self.steady:
            time.sleep(0.005)
        return index


class SleepyStream(IterableDataset[int]):
    def __init__(self, file: str) -> None:
        self.file = file

    def __iter__(self) -> Iterator[int]:
        info = loader.get_worker_info()
        assert info is not None
        yield info.id
        if info.id == 1:
            linger_here(self.file)
        yield info.id


def linger_here(file: str) -> None:
    while not os.path.exists(file):  # noqa: PTH110
        time.sleep(0.01)


def complaint(iterator: Any) -> str:
    """The first timeout that has the stack of the worker that hangs: a busy one may not answer in time."""

    def told() -> str:
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        text = str(caught.value)
        return text if "linger_here" in text else ""

    return str(wait_until(told, "the stack of the worker that hangs"))


def test_a_timeout_names_batch_worker_and_stack_and_no_other_arrival_resets_it(tmp_path: Any) -> None:
    """Other batches arrive every few milliseconds while batch 3 hangs; each of them would reset torch's clock."""
    file = tmp_path / "go on"
    iterator: Any = iter(DataLoader(Sleepy(3, str(file)), num_workers=2, timeout=60))
    seen = [next(iterator).item() for _ in range(3)]
    iterator._timeout = 0.7
    text = complaint(iterator)
    assert "timed out after 0.7 seconds" in text
    assert "waiting for batch 3" in text
    worker = re.search(r"worker (\d) \(pid (\d+)\)", text)
    assert worker is not None
    assert int(worker[2]) in {w.pid for w in workers_of(iterator)}
    file.touch()
    iterator._timeout = 60
    assert seen + [batch.item() for batch in iterator] == list(range(400)), "nothing is lost by a timeout"


def test_a_finished_batch_does_not_wait_for_the_slow_one_behind_it(tmp_path: Any) -> None:
    file = tmp_path / "go on"
    iterator: Any = iter(DataLoader(Sleepy(50, str(file), steady=False), num_workers=1, timeout=PATIENCE))
    try:
        assert [next(iterator).item() for _ in range(50)] == list(range(50))
    finally:
        file.touch()
        iterator.close()


def test_a_timeout_of_a_stream_names_the_worker_that_hangs(tmp_path: Any) -> None:
    iterator: Any = iter(DataLoader(SleepyStream(str(tmp_path / "go on")), num_workers=2, timeout=60))
    assert [next(iterator).item() for _ in range(3)] == [0, 1, 0]
    iterator._timeout = 0.7
    assert re.search(r"(?s)batch 3.*worker 1 \(pid \d+\)", complaint(iterator))
    (tmp_path / "go on").touch()
    iterator._timeout = 60
    assert next(iterator).item() == 1


# -- dead workers -------------------------------------------------------------------------------------------


class Deadly(Dataset[int]):
    """Ends its worker at index 5, `times` times at the most."""

    def __init__(self, how: str, folder: str, times: int) -> None:
        self.how, self.folder, self.times = how, folder, times

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        if index == 5:
            for attempt in range(self.times):
                try:
                    os.close(os.open(f"{self.folder}/{attempt}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                end_process(self.how)
        return index


def end_process(how: str) -> None:
    faulthandler.disable()  # pytest's: it would print the stack of a crash that is meant
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


@pytest.mark.parametrize("how", ["exit", "SIGKILL", "SIGSEGV", "SIGTERM"])
def test_the_tasks_of_a_dead_worker_go_to_another(how: str, tmp_path: Any) -> None:
    made = DataLoader(Deadly(how, str(tmp_path), 1), num_workers=2, batch_size=2)
    assert values(made) == [[i, i + 1] for i in range(0, 30, 2)]


@pytest.mark.parametrize(("how", "cause"), [("exit", "exit code 7"), ("SIGKILL", "SIGKILL"), ("SIGSEGV", "SIGSEGV")])
def test_a_batch_that_ends_every_worker_is_given_up(how: str, cause: str, tmp_path: Any) -> None:
    iterator = iter(DataLoader(Deadly(how, str(tmp_path), 99), num_workers=2, batch_size=2, max_retries=1))
    seen = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(RuntimeError, match=rf"pid\(s\) \d+.*{cause}.*batch 2") as caught:
        next(iterator)
    assert "[4, 5]" in str(caught.value), "the sample indices"
    assert [*seen, *values(iterator)] == [[i, i + 1] for i in range(0, 30, 2) if i != 4]
    assert len(list(tmp_path.iterdir())) == 2, "tried once more"


def test_without_retries_the_first_death_is_an_error(tmp_path: Any) -> None:
    made = DataLoader(Deadly("exit", str(tmp_path), 99), num_workers=1, max_retries=0)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"):
        list(made)


def deadly_init(_: int) -> None:
    os._exit(9)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Samples(), Stream()], ids=["map", "iterable"])
def test_workers_that_die_at_birth(dataset: Any, persistent: bool) -> None:
    made = DataLoader(dataset, num_workers=2, worker_init_fn=deadly_init, persistent_workers=persistent)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exit code 9"):
            list(made)
    if persistent:
        iterator: Any = made._iterator
        conductor = iterator.pool.conductor
        assert conductor._given_up
        births = conductor.roster.new_key()
        for _ in range(20):  # each is a turn of its loop, in which it would fork
            turn = threading.Event()
            conductor.request(TakeStack(lambda _text, turn=turn: turn.set(), None))  # type: ignore[misc]
            assert turn.wait(PATIENCE)
        assert conductor.roster.new_key() == births + 1, "it goes on forking"


def test_a_worker_killed_while_idle_is_replaced() -> None:
    made = DataLoader(Samples(length=20), num_workers=2, persistent_workers=True)
    list(made)
    iterator: Any = made._iterator
    for worker in workers_of(iterator):
        os.kill(worker.pid, signal.SIGKILL)
    assert values(made) == [[i] for i in range(20)]


def test_a_stream_whose_idle_worker_dies_does_not_end_early() -> None:
    iterator = iter(DataLoader(Stream(length=1000), num_workers=1, prefetch_factor=1))
    next(iterator)
    window: Any = iterator.pool.conductor.epoch
    wait_until(lambda: window.ready or not window.window.unfinished, "an idle worker")
    os.kill(workers_of(iterator)[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly.*SIGKILL"):
        list(iterator)


@pytest.mark.parametrize("seen", [True, False])
def test_a_zygote_killed_in_an_epoch_is_replaced(seen: bool) -> None:
    iterator: Any = iter(DataLoader(Samples(length=300), num_workers=2))
    first = next(iterator).tolist()
    os.kill(iterator.pool.crews[0].nursery.pid, signal.SIGKILL)
    if seen:
        wait_until(lambda: iterator.pool.crews[0].nursery is None, "its death")
    assert [first, *values(iterator)] == [[i] for i in range(300)]


@pytest.mark.parametrize("repeat", range(6))
def test_a_zygote_killed_between_epochs_is_replaced(repeat: int) -> None:
    made = DataLoader(Samples(length=10), num_workers=2, persistent_workers=True)
    list(made)
    iterator: Any = made._iterator
    os.kill(iterator.pool.crews[0].nursery.pid, signal.SIGKILL)
    if repeat % 2:
        wait_until(lambda: iterator.pool.crews[0].nursery is None, "its death")
    assert values(made) == [[i] for i in range(10)]


# -- what cannot be pickled ---------------------------------------------------------------------------------


class Holding(Dataset[Any]):
    def __init__(self, thing: Any) -> None:
        self.inner = {"thing": [1, thing]}

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return index


class Fresh(Dataset[Any]):
    """Gives what cannot be pickled."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return {"x": index, "lock": [threading.Lock()] if index == 1 else index}


def first_of(samples: list[Any]) -> Any:
    return samples[0]


def test_an_unpicklable_batch_names_the_object() -> None:
    iterator = iter(DataLoader(Fresh(), num_workers=1, collate_fn=first_of))
    assert next(iterator) == {"x": 0, "lock": 0}
    with pytest.raises(TypeError, match=r"(?s)batch 1.*batch\['lock'\]\[0\] \(a _thread.lock\)"):
        next(iterator)
    assert next(iterator) == {"x": 2, "lock": 2}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_unpicklable_dataset_names_the_object(method: str) -> None:
    made = DataLoader(Holding(threading.Lock()), num_workers=2, multiprocessing_context=method)
    with pytest.raises(TypeError, match=r"dataset\.inner\['thing'\]\[1\] \(a _thread.lock\)"):
        iter(made)


def test_an_unpicklable_collate_fn_is_named() -> None:
    made = DataLoader(Samples(), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda x: x)
    with pytest.raises(TypeError, match=r"collate_fn \(a builtins.function\)"):
        iter(made)


class Unopenable(Samples):
    """Can be pickled, but not unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise LookupError("cannot be opened")


def test_a_dataset_that_cannot_be_unpickled() -> None:
    made = DataLoader(Unopenable(), num_workers=1, multiprocessing_context="forkserver", persistent_workers=True)
    for _ in range(2):
        with pytest.raises(LookupError, match=r"(?s)unpickled.*cannot be opened"):
            list(made)
    iterator: Any = made._iterator
    with pytest.raises((LookupError, RuntimeError)):  # rather than hang
        next(iterator)


def test_a_key_that_cannot_be_pickled() -> None:
    made = DataLoader(Samples(), sampler=[threading.Lock()], num_workers=1)
    with pytest.raises((TypeError, RuntimeError), match="lock"):
        list(made)
