"""Workers and zygotes that die: replaced, recorded, warned of once, and nothing in the stream changes."""

from __future__ import annotations

import faulthandler
import random
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock import DataLoader
from penstock.failures import WorkerLostError
from penstock.protocol import Resize, WorkerEvent

from tests.loader.scenarios import (
    Counting,
    Deadly,
    DeadlyCollate,
    DiesAtBirth,
    Fate,
    InThread,
    Loaders,
    SavedIteratorStream,
    SavedStream,
    await_workers,
    events,
    kill,
    plain,
    worker_pids,
    zygote_pid,
)
from tests.loader.support import Draws, Samples, Stream, wait_until
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.filterwarnings("ignore:.*(exited unexpectedly|zygote):UserWarning"),
]

WAYS = {"SIGKILL": (-9, "SIGKILL"), "SIGSEGV": (-11, "SIGSEGV"), "exit": (7, "")}


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


def seeded(loaders: Loaders, dataset: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(21)
    options = {"batch_size": 2, "shuffle": True, **options}
    return loaders(dataset, num_workers=workers, generator=generator, **options)


def undisturbed(loaders: Loaders, epochs: int = 1, **options: Any) -> tuple[list[Any], str]:
    """What comes without a crash, and the digest of it."""
    loader = seeded(loaders, Draws(24), 1, **options)
    batches = [batch for _ in range(epochs) for batch in plain(loader)]
    return batches, loader.stats().digest


def deaths(loader: DataLoader[Any]) -> list[WorkerEvent]:
    return [event for event in events(loader, WorkerEvent) if event.what == "died"]


def crash_quietly(_worker: int) -> None:
    """Pytest's fault handler would print the stack of a crash that is meant."""
    faulthandler.disable()


# -- workers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["fetch", "collate"])
@pytest.mark.parametrize("how", WAYS)
def test_a_worker_that_dies_of_a_batch_is_replaced(loaders: Loaders, tmp_path: Path, how: str, place: str) -> None:
    expected, digest = undisturbed(loaders)
    if place == "fetch":
        dataset: Any = Deadly(tmp_path, 13, how, times=2)
        loader, fate = seeded(loaders, dataset), dataset.fate
    else:
        collate = DeadlyCollate(tmp_path, 13, how, times=2)
        loader, fate = seeded(loaders, Counting(tmp_path), collate_fn=collate), collate.fate
    with pytest.warns(UserWarning, match=r"worker \(pid\(s\) \d+\) exited unexpectedly") as warned:
        assert plain(loader) == expected
    assert fate.struck() == 2
    assert [each.category for each in warned].count(UserWarning) == 1
    assert loader.stats().digest == digest
    assert loader.stats().recoveries == 2
    told = deaths(loader)
    batch = next(number for number, (indices, _) in enumerate(expected) if 13 in indices)
    assert [(each.exitcode, each.signal, each.batch, each.retried) for each in told] == [(*WAYS[how], batch, True)] * 2


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV"])
def test_an_idle_worker_that_dies_is_replaced(loaders: Loaders, how: str) -> None:
    expected, digest = undisturbed(loaders)
    loader = seeded(loaders, Draws(24), prefetch_factor=1, worker_init_fn=crash_quietly)
    iterator = iter(loader)
    got = plain([next(iterator)])
    for count in range(1, 5):  # more often than a batch may be retried: no batch is to blame
        # All that was drawn ahead is finished, so nobody will be handed anything before the next `next()`.
        wait_until(lambda: loader.stats().queues.data == 2, "the batches drawn ahead")
        wait_until(lambda: {w.state for w in loader.stats().workers} == {"idle"}, "idle workers, and at least one")
        kill(worker_pids(loader)[0], getattr(signal, how))
        wait_until(lambda count=count: loader.stats().recoveries == count, "news of it")  # type: ignore[misc]
        got += plain([next(iterator)])
    got += plain(iterator)
    assert got == expected
    assert loader.stats().digest == digest
    assert loader.stats().recoveries == 4
    assert [(each.signal, each.batch) for each in deaths(loader)] == [(how, -1)] * 4


def test_a_worker_killed_between_epochs_is_replaced(loaders: Loaders) -> None:
    expected, digest = undisturbed(loaders, 2, persistent_workers=True)
    loader = seeded(loaders, Draws(24), persistent_workers=True)
    got = plain(loader)
    pids = await_workers(loader, 2)
    kill(pids[1])
    got += InThread(lambda: plain(loader)).result()
    assert got == expected
    assert loader.stats().digest == digest
    # The other worker may have made the whole epoch before the pool heard of it.
    wait_until(lambda: loader.stats().recoveries == 1, "news of it")
    assert [(each.pid, each.signal) for each in deaths(loader)] == [(pids[1], "SIGKILL")]


def test_a_worker_killed_while_paused_is_replaced(loaders: Loaders) -> None:
    expected, digest = undisturbed(loaders)
    loader = seeded(loaders, Draws(24))
    iterator = iter(loader)
    got = plain([next(iterator)])
    pids = await_workers(loader, 2)
    loader.pause()
    for pid in pids:
        kill(pid)
    wait_until(lambda: not set(worker_pids(loader)) & set(pids), "news of it")
    assert loader.stats().state == "paused"
    loader.resume()
    got += InThread(lambda: plain(iterator)).result()
    assert got == expected
    assert loader.stats().digest == digest


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_batch_that_kills_too_many_workers_is_an_error_and_the_epoch_goes_on(
    loaders: Loaders, tmp_path: Path, retries: int
) -> None:
    dataset = Deadly(tmp_path, 7, times=99)
    options: dict[str, Any] = {} if retries == 2 else {"max_retries": retries}  # 2 is the default
    loader = loaders(dataset, batch_size=2, num_workers=2, **options)
    iterator = iter(loader)
    got = [next(iterator)[0].tolist() for _ in range(3)]
    with pytest.raises(WorkerLostError) as caught:
        InThread(lambda: next(iterator)).result()
    text = str(caught.value)
    assert re.search(r"pid\(s\) \d+", text)
    assert "signal SIGKILL" in text
    assert "batch 3" in text
    assert "sample indices [6, 7]" in text
    assert loader.state_dict()["batch"] == 4
    got += [batch[0].tolist() for batch in iterator]
    assert got == [[first, first + 1] for first in range(0, 24, 2) if first != 6]
    assert dataset.fate.struck() == retries + 1
    died = deaths(loader)
    assert [each.batch for each in died] == [3] * (retries + 1)
    assert str(died[-1].pid) in text


class Clumsy(Counting):
    """Every fourth sample ends the worker that is the first to fetch it."""

    def __getitem__(self, index: int) -> Any:
        mark = self.folder / f"once {index}"
        if index % 4 == 0 and not mark.exists():
            mark.touch()
            signal.raise_signal(signal.SIGKILL)
        return super().__getitem__(index)


def test_crashes_of_different_batches_do_not_add_up(loaders: Loaders, tmp_path: Path) -> None:
    expected, digest = undisturbed(loaders)
    loader = seeded(loaders, Clumsy(tmp_path), max_retries=1)
    assert plain(loader) == expected
    assert loader.stats().digest == digest
    assert loader.stats().recoveries == 6


def test_workers_that_die_at_birth_are_an_error_that_stays(loaders: Loaders, tmp_path: Path) -> None:
    birth = DiesAtBirth(tmp_path)
    birth.arm()
    loader = loaders(Samples("int", 4), num_workers=2, worker_init_fn=birth)
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=r"exit code 9, before its first batch"):
            InThread(lambda: next(iterator)).result()
    assert loader.stats().state == "failed"
    birth.disarm()
    assert [batch.item() for batch in loader] == [0, 1, 2, 3]
    assert loader.stats().state == "finished"


def test_recoveries_are_warned_of_once_a_loader(loaders: Loaders, tmp_path: Path) -> None:
    loader = loaders(Deadly(tmp_path, 1, length=4), num_workers=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(loader)) == 4
        (tmp_path / "struck 0").unlink()
        assert len(list(loader)) == 4
    assert loader.stats().recoveries == 2
    assert len([each for each in caught if "exited unexpectedly" in str(each.message)]) == 1


def test_warnings_as_errors_do_not_hang_or_lose_a_batch(loaders: Loaders, tmp_path: Path) -> None:
    loader = loaders(Deadly(tmp_path, 1, length=4), num_workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iterator = iter(loader)

        def rest() -> list[int]:
            got = []
            while True:
                try:
                    got.append(next(iterator)[0].item())
                except StopIteration:
                    return got
                except UserWarning as warning:
                    assert "exited unexpectedly" in str(warning)

        assert InThread(rest).result() == [0, 1, 2, 3]


# -- the zygote ------------------------------------------------------------------------------------------------


def test_a_zygote_killed_at_random_times_is_replaced(loaders: Loaders) -> None:
    expected, digest = undisturbed(loaders, 2)
    loader = seeded(loaders, Draws(24), max_retries=1, prefetch_factor=1)
    choose = random.Random(4)
    got = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            got.append(batch)
            if number in (0, 4, 8):  # three times an epoch, more often than a batch may be retried
                pids = wait_until(lambda: worker_pids(loader), "a worker")
                kill(zygote_pid(loader))
                wait_until(lambda pids=pids: not set(pids) & set(worker_pids(loader)), "news of it")  # type: ignore[misc]
                if choose.random() < 0.5:
                    loader._penstock.request(Resize(choose.randint(1, 3)))
    assert plain(got) == expected
    assert loader.stats().digest == digest
    assert loader.stats().recoveries >= 6


def test_a_zygote_killed_between_epochs_is_replaced_every_time(loaders: Loaders) -> None:
    expected, digest = undisturbed(loaders, 4, persistent_workers=True)
    loader = seeded(loaders, Draws(24), 1, persistent_workers=True)
    got = []
    for _ in range(4):
        got += InThread(lambda: plain(loader)).result()
        kill(zygote_pid(loader))
    assert got == expected
    assert loader.stats().digest == digest


def test_a_zygote_killed_while_paused_and_while_resizing(loaders: Loaders) -> None:
    expected, digest = undisturbed(loaders)
    loader = seeded(loaders, Draws(24))
    iterator = iter(loader)
    got = plain([next(iterator)])
    loader.pause()
    kill(zygote_pid(loader))
    ticket = loader._penstock.request(Resize(3))
    rest = InThread(lambda: plain(iterator))
    loader.resume()
    got += rest.result()
    assert got == expected
    assert loader.stats().digest == digest
    assert ticket.wait(PATIENCE).state in ("applied", "superseded", "pending")


class Watched(ForkContext):
    """Forks zygotes, and calls `meddle` before each one after the first."""

    def __init__(self, meddle: Callable[[], None]) -> None:
        self.begun = 0
        self._meddle = meddle

    def Process(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        self.begun += 1
        if self.begun > 1:
            self._meddle()
        return ForkProcess(*arguments, **options)


def without_zygote(loaders: Loaders, context: Watched) -> tuple[Any, Any]:
    """A loader whose zygote was just lost, as training will notice with the next batch; and its iterator."""
    loader = loaders(Samples(length=400), num_workers=1, multiprocessing_context=context, prefetch_factor=1)
    iterator: Any = iter(loader)
    next(iterator)
    kill(zygote_pid(loader))
    wait_until(lambda: iterator.pool.conductor.lost, "news of it")
    return loader, iterator


def test_a_loader_that_is_closed_while_its_zygote_is_replaced_says_so(loaders: Loaders) -> None:
    """What the first zygote's board was in must not be given to the next one when it is closed."""
    closing: list[InThread] = []

    def close() -> None:
        closing.append(InThread(loader.close))
        wait_until(iterator.pool.conductor.over.is_set, "the end of the pool")

    context = Watched(close)
    loader, iterator = without_zygote(loaders, context)
    with pytest.raises(RuntimeError, match="closed while it was iterated over"):
        InThread(lambda: list(iterator)).result()
    assert context.begun == 2
    closing[0].result()


def test_a_closed_loader_starts_no_zygote(loaders: Loaders) -> None:
    context = Watched(lambda: None)
    loader, iterator = without_zygote(loaders, context)
    loader.close()
    with pytest.raises(RuntimeError, match="closed while it was iterated over"):
        InThread(lambda: list(iterator)).result()
    assert context.begun == 1


def test_ctrl_c_while_a_zygote_is_replaced_does_not_end_the_pool(loaders: Loaders) -> None:
    def interrupt() -> None:
        if context.begun == 2:
            raise KeyboardInterrupt

    context = Watched(interrupt)
    _, iterator = without_zygote(loaders, context)
    got = []
    with pytest.raises(KeyboardInterrupt):
        while True:
            got.append(next(iterator).item())
    assert got + InThread(lambda: [batch.item() for batch in iterator]).result() == list(range(1, 400))


# -- iterable-style ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS)
def test_an_iterable_dataset_with_a_saved_position_goes_on(loaders: Loaders, tmp_path: Path, how: str) -> None:
    expected = plain(seeded(loaders, SavedStream(24), shuffle=False))
    loader = seeded(loaders, SavedStream(24, fate=Fate(tmp_path, how, 2), fatal=13), shuffle=False)
    assert plain(loader) == expected
    assert loader.stats().recoveries == 2
    assert [each.signal for each in deaths(loader)] == [WAYS[how][1]] * 2


def test_an_iterator_with_a_saved_position_goes_on_after_kills(loaders: Loaders) -> None:
    expected = plain(seeded(loaders, SavedIteratorStream(40), shuffle=False))
    loader = seeded(loaders, SavedIteratorStream(40), shuffle=False, prefetch_factor=1)
    got = []
    for number, batch in enumerate(loader):
        got += plain([batch])
        if number in (4, 9):
            kill(await_workers(loader, 2)[number % 2])
        elif number == 14:
            kill(zygote_pid(loader))
    assert got == expected


def test_an_iterable_dataset_without_a_position_fails_and_says_so(loaders: Loaders) -> None:
    loader = loaders(Stream("int", 40), num_workers=2, prefetch_factor=1)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    pid = await_workers(loader, 2)[0]
    kill(pid)
    with pytest.raises(WorkerLostError, match=rf"pid\(s\) {pid}.*SIGKILL"):
        InThread(lambda: list(iterator)).result()
    # The other shard is whole.
    rest = [batch.item() for batch in iterator]
    assert rest == sorted(rest)
    assert set(rest) <= set(range(1, 40, 2))
    assert rest[-1] == 39


def test_a_shard_that_kills_too_many_workers_is_an_error(loaders: Loaders, tmp_path: Path) -> None:
    fate = Fate(tmp_path, "SIGKILL", 99)
    loader = loaders(SavedStream(12, fate=fate, fatal=4), num_workers=2, max_retries=1)
    iterator = iter(loader)
    got = []

    def take() -> bool:
        for batch in iterator:
            got.append(batch[0].item())
        return True

    with pytest.raises(WorkerLostError, match="SIGKILL"):
        InThread(take).result()
    assert InThread(take).result()
    assert got[:4] == [0, 1, 2, 3]
    assert got[4:] == [5, 7, 9, 11]
    assert fate.struck() == 2


# -- all at once -------------------------------------------------------------------------------------------------


def test_workers_killed_at_random_by_another_thread(loaders: Loaders) -> None:
    generator = torch.Generator().manual_seed(21)
    quiet = loaders(Draws(300), batch_size=2, num_workers=1, shuffle=True, generator=generator)
    expected = plain(quiet)
    generator = torch.Generator().manual_seed(21)
    options = {"shuffle": True, "generator": generator, "max_retries": 50, "prefetch_factor": 2}
    loader = loaders(Draws(300), batch_size=2, num_workers=3, **options)
    iterator = iter(loader)
    got = [next(iterator)]
    stop = threading.Event()
    killed: set[int] = set()

    def haunt() -> None:
        choose = random.Random(1)
        while not stop.wait(0.02):
            pids = worker_pids(loader)
            if pids:
                pid = choose.choice(pids)
                try:
                    kill(pid)
                except ProcessLookupError:
                    continue
                killed.add(pid)

    haunting = InThread(haunt)
    try:
        while len(killed) < 5 and len(got) < 140:
            got.append(next(iterator))
            before = len(killed)
            wait_until(lambda before=before: len(killed) > before or len(got) > 10, "a death")  # type: ignore[misc]
    finally:
        stop.set()
        haunting.result()
    wait_until(lambda: loader.stats().recoveries >= len(killed), "news of every death")
    got += InThread(lambda: list(iterator)).result()
    assert plain(got) == expected
    assert loader.stats().digest == quiet.stats().digest
    assert len(killed) >= 5
