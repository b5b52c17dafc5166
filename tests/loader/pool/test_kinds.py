"""What every kind of worker promises: one suite, run against all of them. A new kind is a line in `KINDS`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.data
from penstock import get_worker_info
from penstock.protocol import EpochEvent, Spans, Stall, WorkerEvent
from torch.utils.data import Dataset, IterableDataset

from tests.loader.agent import agents
from tests.loader.scenarios import Held, InThread, Loaders, events, plain
from tests.loader.support import Samples, Stream, wait_until

pytestmark = [
    pytest.mark.usefixtures("shared_agents", "nothing_left_behind"),
    pytest.mark.filterwarnings("ignore:the dataset, or what it calls, draws"),  # as some of the shared datasets do
]
DataLoader: Any = __import__("penstock").DataLoader


class Kind(NamedTuple):
    """A kind of worker."""

    word: str
    """What its workers are called in messages."""
    open: Callable[[], AbstractContextManager[Any]]
    """Start what it needs, and give the loader's argument `workers`."""
    ends: str
    """How a sample ends its worker: by "SIGKILL", or, where that would end the tests, by "SystemExit"."""
    other: str = "process"
    """The kind that it is compared with."""


KINDS = {
    "process": Kind("process", lambda: nullcontext("process"), "SIGKILL", other="thread"),
    "thread": Kind("thread", lambda: nullcontext("thread"), "SystemExit"),
    "remote": Kind("process", lambda: nullcontext(agents.remote(agents.shared)), "SIGKILL"),
    "mixed": Kind("process", lambda: nullcontext(agents.remote(agents.shared, local=1)), "SIGKILL"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def workers(kind: Kind) -> Iterator[Any]:
    """The loader's argument."""
    with kind.open() as workers:
        yield workers


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


class Augmented(Dataset[Any]):
    """What it draws is right in every kind of worker."""

    def __init__(self, length: int = 30) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(2, generator=torch.thread_safe_generator())


class AugmentedStream(IterableDataset[Any]):
    """The same; it can save its position."""

    def __init__(self, length: int = 24) -> None:
        self.length, self.position = length, 0

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        numbers = range(info.id, self.length, info.num_workers)
        while self.position < len(numbers):
            self.position += 1
            number = torch.rand(1, generator=torch.thread_safe_generator()).item()
            yield numbers[self.position - 1], number
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def seeded(loaders: Loaders, dataset: Any, **options: Any) -> Any:
    torch.manual_seed(5)
    return loaders(dataset, batch_size=2, **options)


# -- the stream ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dataset", [Samples("dict", 23), Stream("nested", 23)], ids=["map", "iterable"])
def test_the_stream_is_torchs(loaders: Loaders, dataset: Any, count: int, workers: Any) -> None:
    def read(made: Any) -> list[Any]:
        torch.manual_seed(11)
        return [str(batch) for _ in range(2) for batch in made]

    options: dict[str, Any] = {"batch_size": 4, "shuffle": isinstance(dataset, Samples), "num_workers": count}
    assert read(loaders(dataset, workers=workers, **options)) == read(torch.utils.data.DataLoader(dataset, **options))


def test_no_schedule_of_commands_changes_the_stream(loaders: Loaders, kind: Kind, workers: Any) -> None:
    undisturbed = seeded(loaders, Augmented(60), shuffle=True, num_workers=2, workers=kind.other)
    expected = plain(undisturbed)
    disturbed = seeded(loaders, Augmented(60), shuffle=True, num_workers=2, workers=workers)
    choose, got = random.Random(3), []
    for batch in disturbed:
        got.append(batch)
        command = choose.choice(["resize", "pause", "none", "none"])
        if command == "resize":
            assert disturbed.resize(choose.randint(1, 4)).state == "applied"
        elif command == "pause":
            disturbed.pause()
            disturbed.resume()
    assert plain(got) == expected, "what is drawn does not depend on the kind either"
    assert disturbed.stats().digest == undisturbed.stats().digest


def test_a_paused_loader_waits(loaders: Loaders, workers: Any) -> None:
    made = loaders(Samples("int", 40), num_workers=2, workers=workers, prefetch_factor=1)
    iterator = iter(made)
    next(iterator)
    assert made.pause().state == "applied"
    rest = InThread(lambda: [batch.item() for batch in iterator])
    wait_until(lambda: made.stats().times.paused_us, "time that counts as paused")
    assert not rest.is_done()
    wait_until(lambda: {worker.state for worker in made.stats().workers} == {"paused"}, "workers that hold")
    made.resume()
    assert rest.result() == list(range(1, 40))


def test_persistent_workers_stay(loaders: Loaders, workers: Any) -> None:
    made = loaders(Stream(length=12), num_workers=2, workers=workers, persistent_workers=True)
    epochs = [sorted(batch.item() for batch in made) for _ in range(3)]
    assert epochs == [list(range(12))] * 3
    assert [event.what for event in events(made, WorkerEvent)] == ["born", "born"]


# -- errors and deaths --------------------------------------------------------------------------------------


def test_an_error_names_worker_batch_and_sample(loaders: Loaders, kind: Kind, workers: Any) -> None:
    made = loaders(Samples(length=6), sampler=[0, 1, 9, 2], num_workers=1, workers=workers)
    iterator = iter(made)
    assert [next(iterator).item(), next(iterator).item()] == [0, 1]
    with pytest.raises(IndexError, match=f"worker {kind.word} 0, batch 2, sample index 9"):
        next(iterator)
    assert next(iterator).item() == 2, "it goes on behind it"


class EndsWorker(Dataset[Any]):
    """Fetching sample 5 ends the worker that does so for the first time."""

    def __init__(self, folder: Path, how: str) -> None:
        self.marker, self.how = folder / "ended", how

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == 5 and not self.marker.exists():
            self.marker.touch()
            if self.how == "SystemExit":
                raise SystemExit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_worker_that_ends_is_replaced(loaders: Loaders, kind: Kind, workers: Any, tmp_path: Path) -> None:
    made = loaders(EndsWorker(tmp_path, kind.ends), num_workers=2, workers=workers)
    with pytest.warns(UserWarning, match=r"unexpectedly.*go to another worker"):
        assert [batch.item() for batch in made] == list(range(20))
    assert made.stats().recoveries == 1
    (died,) = (event for event in events(made, WorkerEvent) if event.what == "died")
    assert (died.batch, died.retried) == (5, True)


def fail(_worker: int) -> None:
    raise ZeroDivisionError("at birth")


def test_an_error_in_worker_init_fn_is_told(loaders: Loaders, kind: Kind, workers: Any) -> None:
    made = loaders(Samples(), num_workers=1, workers=workers, worker_init_fn=fail)
    with pytest.raises(ZeroDivisionError, match=f"worker {kind.word} 0"):
        list(made)


def test_a_timeout_shows_the_stack(loaders: Loaders, workers: Any, tmp_path: Path) -> None:
    dataset = Held(tmp_path, {0})
    made = loaders(dataset, num_workers=1, workers=workers, timeout=0.5, collate_fn=len)
    iterator = iter(made)
    try:
        dataset.await_held(0)

        def said() -> str:
            with pytest.raises(RuntimeError, match=r"timed out after 0.5 seconds") as raised:
                next(iterator)
            return str(raised.value)

        # On a busy machine a worker may not answer in the little time that it has.
        wait_until(lambda: "in __getitem__" in said(), "the stack")
    finally:
        dataset.let_go()


class Flawed(Samples):
    """Two samples fail whenever they are asked for, one the first time only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(length=12)
        self.tried = folder / "tried"

    def __getitem__(self, key: int) -> Any:
        if key in (3, 8) or (key == 5 and not self.tried.exists()):
            self.tried.touch()
            raise ValueError(f"broken: {key}")
        return key


def test_bad_samples_are_left_out_and_told(loaders: Loaders, workers: Any, tmp_path: Path) -> None:
    made = loaders(Flawed(tmp_path), batch_size=4, num_workers=2, workers=workers, on_error="skip", max_errors=1.0)
    assert plain(made) == [[0, 1, 2], [4, 5, 6, 7], [9, 10, 11]]
    found = made.stats().quarantined
    assert sorted(each.index for each in found) == ["3", "8"]
    assert all("broken" in each.error and "in __getitem__" in each.traceback for each in found)


# -- checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [Augmented(), AugmentedStream()], ids=["map", "iterable"])
def test_a_state_goes_on_in_any_kind(loaders: Loaders, kind: Kind, workers: Any, dataset: Any) -> None:
    options = {"shuffle": True} if isinstance(dataset, Augmented) else {}
    whole = seeded(loaders, dataset, num_workers=2, workers=workers, **options)
    expected = plain(whole)
    first = seeded(loaders, dataset, num_workers=2, workers=workers, **options)
    iterator = iter(first)
    begun = plain(next(iterator) for _ in range(5))
    state = first.state_dict()
    resumed = loaders(dataset, batch_size=2, num_workers=2, workers=kind.other, **options)
    resumed.load_state_dict(state)
    assert begun + plain(resumed) == expected
    assert resumed.stats().digest == whole.stats().digest


# -- telemetry ----------------------------------------------------------------------------------------------


def test_what_happens_is_told(loaders: Loaders, workers: Any, tmp_path: Path) -> None:
    dataset = Held(tmp_path, {3}, 12)
    made = loaders(dataset, num_workers=2, workers=workers, stack_after=0.01, collate_fn=len)
    made._penstock.ledger.spans.watch(time.monotonic_ns())
    iterator: Any = iter(made)
    rest = InThread(lambda: list(iterator))
    watch = iterator.pool.conductor.observer.stalls
    wait_until(lambda: watch.open is not None and watch.open.stack, "the stack of a stall")
    stats = made.stats()
    # One, or two: a task that was taken back just when it was taken up is made twice.
    busy = {worker.id: worker.pid for worker in stats.workers if worker.state == "fetching" and worker.batch == 3}
    assert busy and all(busy.values()) and stats.queues.reorder > 0
    dataset.let_go()
    assert len(rest.result()) == 12
    told = made._penstock.ledger.take_events()
    (stall,) = (event for event in told if isinstance(event, Stall) and event.stack)
    assert stall.batch == 3 and stall.worker in busy
    assert "in __getitem__" in stall.stack
    assert {span.batch for event in told if isinstance(event, Spans) for span in event.spans} == set(range(12))
    assert [event.what for event in told if isinstance(event, EpochEvent)] == ["started", "ended"]
    stats = made.stats()
    assert (stats.batches, stats.samples, stats.cost.count) == (12, 12, 12)


def work(seconds: float) -> int:
    """Keeps a processor busy."""
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1
    return turns


class Working(Samples):
    def __getitem__(self, key: int) -> Any:
        return work(0.002) * 0 + key


def test_a_profile_finds_the_line(loaders: Loaders, workers: Any) -> None:
    made = loaders(Working(length=4000), num_workers=2, workers=workers)
    iterator = iter(made)
    next(iterator)
    with made.profiling(rate=200) as profiling:
        wait_until(lambda: next(iterator) is not None and profiling.profile.seconds > 0.6, "some looks")
    seen = {(each.name, Path(each.file).name) for each in profiling.profile.tree.functions}
    assert ("work", "test_kinds.py") in seen
    made.close()


# -- the end ------------------------------------------------------------------------------------------------


class Owner:
    """A training class as many are: its loader calls a method of its own."""

    def __init__(self, workers: Any) -> None:
        self.loader = DataLoader(Samples(length=8), num_workers=1, workers=workers, collate_fn=self.collate)
        self.iterator = iter(self.loader)
        next(self.iterator)

    def collate(self, samples: list[Any]) -> Any:
        return samples


def test_an_iterator_that_nobody_has_any_more_ends(workers: Any) -> None:
    """That nothing of it is left is seen by the fixture, which collects garbage."""
    owner = Owner(workers)
    del owner


def test_a_loader_closed_while_it_is_waited_for_says_so(loaders: Loaders, workers: Any, tmp_path: Path) -> None:
    dataset = Held(tmp_path, {0}, 4)
    made = loaders(dataset, num_workers=1, workers=workers, collate_fn=len)
    iterator = iter(made)
    waiting = InThread(lambda: next(iterator))
    dataset.await_held(0)
    closing = InThread(made.close)
    with pytest.raises(RuntimeError, match="closed while it was iterated over"):
        waiting.result()
    dataset.let_go()
    closing.result()
