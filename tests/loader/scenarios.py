"""Datasets that wait, crash and save their position, and ways to disturb a pool. For the tests of control and recovery.

Everything that has to pass between a test and its workers goes through files in the test's own folder, so that it
works for every start method and survives any crash.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from penstock import DataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.loader.support import draw, wait_until
from tests.patience import PATIENCE


class Counting(Dataset[Any]):
    """Gives (index, what was drawn) and writes down which process fetched it."""

    def __init__(self, folder: Path, length: int = 24) -> None:
        self.folder = folder
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with (self.folder / "fetched").open("a") as log:
            log.write(f"{index} {os.getpid()}\n")
        return index, draw()

    def fetched(self) -> list[tuple[int, int]]:
        """(index, pid) of everything fetched so far."""
        log = self.folder / "fetched"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(int(index), int(pid)) for index, pid in (line.split() for line in lines)]


class Held(Counting):
    """Stops at some samples until the test lets them go."""

    def __init__(self, folder: Path, indices: set[int], length: int = 24) -> None:
        super().__init__(folder, length)
        self.indices = indices

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index in self.indices:
            wait_until(lambda: self._is_free(index), f"leave to go on with sample {index}")
        return sample

    def _is_free(self, index: int) -> bool:
        return (self.folder / "all go").exists() or (self.folder / f"go {index}").exists()

    def let_go(self, index: int | None = None) -> None:
        (self.folder / ("all go" if index is None else f"go {index}")).touch()

    def await_held(self, *indices: int) -> None:
        """Wait until workers stand at these samples."""
        wait_until(lambda: set(indices) <= {index for index, _ in self.fetched()}, f"samples {indices}")

    def await_holders(self, count: int) -> set[int]:
        """Wait until so many workers stand at a sample; their pids."""

        def holders() -> set[int]:
            return {pid for index, pid in self.fetched() if index in self.indices}

        wait_until(lambda: len(holders()) >= count, f"{count} workers at work")
        return holders()


class HeldOnce(Held):
    """Stops only at the first fetch of a sample."""

    def _is_free(self, index: int) -> bool:
        return [each for each, _ in self.fetched()].count(index) > 1 or super()._is_free(index)


class Fate:
    """Ends the process that calls it, so many times in all, whatever processes those are."""

    def __init__(self, folder: Path, how: str, times: int) -> None:
        self.folder = folder
        self.how = how
        self.times = times

    def strike(self) -> None:
        for number in range(self.times):
            try:
                os.close(os.open(self.folder / f"struck {number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            end_process(self.how)

    def struck(self) -> int:
        return len(list(self.folder.glob("struck *")))


def end_process(how: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # pytest's: it would print the stack of a crash that is meant
    if how == "exit":
        os._exit(7)
    signal.signal(getattr(signal, how), signal.SIG_DFL) if how != "SIGKILL" else None
    os.kill(os.getpid(), getattr(signal, how))


class Deadly(Counting):
    """Fetching one of its samples ends the worker."""

    def __init__(self, folder: Path, index: int, how: str = "SIGKILL", times: int = 1, length: int = 24) -> None:
        super().__init__(folder, length)
        self.index = index
        self.fate = Fate(folder, how, times)

    def __getitem__(self, index: int) -> Any:
        if index == self.index:
            self.fate.strike()
        return super().__getitem__(index)


class DeadlyCollate:
    """Collating a batch that has a certain sample ends the worker."""

    def __init__(self, folder: Path, index: int, how: str = "SIGKILL", times: int = 1) -> None:
        self.index = index
        self.fate = Fate(folder, how, times)

    def __call__(self, samples: list[Any]) -> Any:
        if any(sample[0] == self.index for sample in samples):
            self.fate.strike()
        return torch.utils.data.default_collate(samples)


class DiesAtBirth:
    """A worker_init_fn that ends every worker while a file exists."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "deadly"

    def __call__(self, _worker: int) -> None:
        if self.file.exists():
            os._exit(9)

    def arm(self) -> None:
        self.file.touch()

    def disarm(self) -> None:
        self.file.unlink()


class SavedStream(IterableDataset[Any]):
    """Iterable-style; the dataset itself saves its position, and goes on from there with every `iter()`.

    It draws random numbers; `size` makes its samples large.
    """

    def __init__(self, length: int = 24, size: int = 1, fate: Fate | None = None, fatal: int = -1) -> None:
        self.first = 0
        self.end = length
        self.size = size
        self.fate = fate
        self.fatal = fatal
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return self._samples(first, step)

    def _samples(self, first: int, step: int) -> Iterator[Any]:
        numbers = range(self.first + first, self.end, step)
        while self.position < len(numbers):
            number = numbers[self.position]
            if number == self.fatal and self.fate is not None:
                self.fate.strike()
            self.position += 1
            yield torch.full((self.size,), number), draw()
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class RewoundStream(SavedStream):
    """Begins anew with every `iter()` that does not follow `load_state_dict()`."""

    loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.position = 0
        self.loaded = False
        return super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True


class Positioned(Iterator[Any]):
    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.position = 0

    def __next__(self) -> Any:
        if self.position >= len(self.numbers):
            raise StopIteration
        self.position += 1
        return torch.full((1,), self.numbers[self.position - 1]), draw()

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class SavedIteratorStream(IterableDataset[Any]):
    """Iterable-style; its iterator saves the position, the dataset cannot."""

    def __init__(self, length: int = 24, *, share: bool = True) -> None:
        self.first = 0
        self.end = length
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None or not self.share else (info.id, info.num_workers)
        return Positioned(range(self.first + first, self.end, step))


def split_evenly(worker: int) -> None:
    """A worker_init_fn as torch's documentation has it: each worker's dataset is cut down to its own range."""
    info: Any = get_worker_info()
    dataset = info.dataset
    share = -(-(dataset.end - dataset.first) // info.num_workers)
    dataset.first += worker * share
    dataset.end = min(dataset.first + share, dataset.end)


def plain(batches: Any) -> list[Any]:
    """Batches as nested lists, which compare by value."""
    return [_plain(batch) for batch in batches]


def _plain(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.tolist()
    if isinstance(part, list | tuple):
        return [_plain(each) for each in part]
    return part


def worker_pids(loader: DataLoader[Any]) -> list[int]:
    """The workers that are alive and meant to work, by id."""
    workers = loader.stats().workers
    return [worker.pid for worker in workers if worker.pid and worker.state not in ("retiring", "dead", "starting")]


def await_workers(loader: DataLoader[Any], count: int) -> list[int]:
    wait_until(lambda: len(worker_pids(loader)) == count, f"{count} workers")
    return worker_pids(loader)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def zygote_pid(loader: DataLoader[Any], patience: float = PATIENCE) -> int:
    """The workers' parent."""

    def found() -> int:
        for pid in worker_pids(loader):
            try:
                parent = parent_of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent not in (1, os.getpid()):
                return parent
        return 0

    return int(wait_until(found, "a zygote", patience))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process of this test and, if it is to die, wait until it has."""
    os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_until(lambda: is_dead(pid), f"the end of {pid}")


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


class InThread:
    """Runs a call in a thread of its own; `result` waits for what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, patience: float = PATIENCE) -> Any:
        self._thread.join(patience)
        if self._thread.is_alive():
            raise AssertionError("the call never came back")
        if self._error is not None:
            raise self._error
        return self._value


def events(loader: DataLoader[Any], kind: type) -> list[Any]:
    """The events of one kind since the last call; the others are lost."""
    return [event for event in loader._penstock.ledger.take_events() if isinstance(event, kind)]


class Loaders:
    """Makes loaders and closes them all at the end of the test."""

    def __init__(self) -> None:
        self._made: list[DataLoader[Any]] = []

    def __call__(self, *arguments: Any, **options: Any) -> DataLoader[Any]:
        made: DataLoader[Any] = DataLoader(*arguments, **options)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()
        self._made.clear()
