"""The next epoch, begun before this one is over: nobody can tell but by the time that it takes."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from penstock.fingerprint import shares
from penstock.iteration.edge import Edge
from penstock.protocol import Spans
from penstock.sampling.foreseeing import MOST_DRAWS, Foresight
from torch.utils import data

import loader
from tests.loader.support import DataLoader, Draws, Samples, Stream, assert_same, wait_until
from tests.loader.telemetry.test_times import Moments

WORKERS = 2
DEPTH = 2 * WORKERS


@pytest.fixture(autouse=True)
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every epoch that was foreseen and then begun: whether it began as it was foreseen."""
    seen: list[bool] = []
    choose = Edge.choose

    def watched(edge: Edge, begun: Any) -> Any:
        chosen = choose(edge, begun)
        seen.append(chosen is not begun)
        return chosen

    monkeypatch.setattr(Edge, "choose", watched)
    return seen


def make(dataset: Any, **arguments: Any) -> Any:
    return DataLoader(dataset, num_workers=WORKERS, persistent_workers=True, **{"refresh": "never", **arguments})


def conductor_of(train: Any) -> Any:
    return train._iterator.pool.conductor


def foreseen_finished(train: Any) -> int:
    foreseen = conductor_of(train).foreseen
    return 0 if foreseen is None else foreseen.finished


def wait_for_foreseen(train: Any, count: int = DEPTH) -> None:
    wait_until(lambda: foreseen_finished(train) >= count, f"{count} batches of the next epoch")


# -- the stream is torch's -----------------------------------------------------------------------------------------


class Script:
    """What a training does beside taking batches: the same for torch's loader and for ours."""

    def __init__(self, seed: int, sampler: str, own_generator: bool) -> None:
        self.seed, self.kind, self.own = seed, sampler, own_generator

    def run(self, ours: bool) -> list[Any]:
        """Everything that can be seen of a training with one of the two loaders."""
        choice = random.Random(self.seed)
        torch.manual_seed(self.seed % 100)
        generator = torch.Generator().manual_seed(self.seed % 7) if self.own else None
        dataset = Samples("int", choice.randint(9, 40))
        sampler = self._sampler(dataset, generator)
        arguments: dict[str, Any] = {
            "batch_size": choice.randint(1, 4),
            "drop_last": choice.random() < 0.3,
            "generator": generator,
            "sampler": sampler,
            "prefetch_factor": choice.choice([None, None, 1, 3]),
        }
        kinds: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
        train: Any = make(dataset, **arguments) if ours else data.DataLoader(dataset, **arguments, **kinds)
        draws_in_steps, nudges = choice.random() < 0.2, random.Random(self.seed)
        seen: list[Any] = []
        for epoch in range(5):
            leaves_at = choice.randint(0, 12) if choice.random() < 0.2 else 10**6
            for number, batch in enumerate(train):
                seen.append((epoch, batch.tolist()))
                if draws_in_steps:
                    torch.rand(2)
                if ours:
                    self._nudge(train, nudges)
                if number == leaves_at:
                    break
            seen.append((torch.get_rng_state().tolist(), None if generator is None else generator.get_state().tolist()))
            self._between(choice, epoch, dataset, sampler, generator)
            if ours:
                self._nudge(train, nudges)
                if nudges.random() < 0.1:
                    train.load_state_dict(train.state_dict())
        if ours:
            train.close()
        return seen

    def _sampler(self, dataset: Any, generator: torch.Generator | None) -> Any:
        makers: dict[str, Any] = {
            "sequential": lambda: data.SequentialSampler(dataset),
            "random": lambda: data.RandomSampler(dataset, generator=generator),
            "replaced": lambda: data.RandomSampler(dataset, replacement=True, num_samples=30, generator=generator),
            "subset": lambda: data.SubsetRandomSampler(range(len(dataset)), generator=generator),
            "weighted": lambda: data.WeightedRandomSampler([1.0, 2.0, 3.0] * 3, 25, generator=generator),
            "distributed": lambda: data.DistributedSampler(dataset, 2, 1),
            "list": lambda: list(range(len(dataset))),
        }
        return makers[self.kind]()

    def _between(
        self, choice: random.Random, epoch: int, dataset: Any, sampler: Any, generator: torch.Generator | None
    ) -> None:
        what = choice.choice(["nothing"] * 4 + ["validate"] * 3 + ["seed", "draw", "draw own", "shrink"])
        if isinstance(sampler, data.DistributedSampler) and choice.random() < 0.8:
            sampler.set_epoch(epoch + 1 + 3 * (choice.random() < 0.2))
        if what == "validate":
            list(data.DataLoader(Samples("int", 3)))
        elif what == "seed":
            torch.manual_seed(epoch)
        elif what == "draw":
            torch.rand(3)
        elif what == "draw own" and generator is not None:
            torch.rand(1, generator=generator)
        elif what == "shrink" and self.kind in ("sequential", "random"):
            dataset.length -= 1
        elif what == "shrink" and self.kind == "list":
            sampler.reverse()

    def _nudge(self, train: Any, nudges: random.Random) -> None:
        """Control, accidents and pauses, of which torch's loader knows nothing."""
        what = nudges.random()
        if what < 0.05:
            train.resize(nudges.randint(1, 3))
        elif what < 0.1:
            train.pause(resume_after=0.05)
        elif what < 0.13:
            busy = [worker.pid for worker in conductor_of(train).roster if worker.pid and worker.up]
            if busy:
                with contextlib.suppress(ProcessLookupError):  # it has just gone
                    os.kill(nudges.choice(busy), signal.SIGKILL)
        elif what < 0.4:
            time.sleep(0.01)  # time to make what is foreseen


@pytest.mark.filterwarnings("ignore:DataLoader worker")
@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("sampler", ["sequential", "random", "replaced", "subset", "weighted", "distributed", "list"])
def test_batches_and_generators_are_torchs_whatever_happens_between_epochs(
    sampler: str, own_generator: bool, outcomes: list[bool]
) -> None:
    for seed in range(3):
        script = Script(1000 * seed + 17, sampler, own_generator)
        assert_same(script.run(ours=True), script.run(ours=False))
    assert outcomes, "nothing was foreseen: the test tests nothing"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_augmentation_is_what_it_is_without_foreseeing(method: str, outcomes: list[bool]) -> None:
    def epochs(prefetch: bool) -> list[Any]:
        torch.manual_seed(3)
        with make(
            Draws(24), batch_size=3, shuffle=True, multiprocessing_context=method, prefetch_epochs=prefetch
        ) as train:
            got = []
            for _ in range(3):
                for batch in train:
                    got.append(batch)
                    time.sleep(0.01)
            return got

    assert_same(epochs(True), epochs(False))
    assert outcomes == [True, True]


# -- where it is of use --------------------------------------------------------------------------------------------


def test_the_next_epoch_is_ready_when_it_begins(outcomes: list[bool]) -> None:
    with make(Samples("int", 40), batch_size=2, shuffle=True) as train:
        for _ in range(3):
            for _ in train:
                pass
            wait_for_foreseen(train)
            begun = iter(train)
            wait_until(lambda: len(train._iterator._epoch.ready) >= DEPTH, "its first batches, before one is asked for")
            assert train.stats().state == "running"
            for _ in begun:
                pass
    assert outcomes == [True] * 5


def test_a_validation_loader_that_draws_its_seed_in_between_is_expected_after_the_first_time(
    outcomes: list[bool],
) -> None:
    validation = DataLoader(Samples("int", 4))
    with make(Samples("int", 30), batch_size=2, shuffle=True) as train:
        for _ in range(4):
            list(train)
            list(validation)
    assert outcomes == [False, True, True]


def test_set_epoch_is_expected_to_go_on_as_it_did(outcomes: list[bool]) -> None:
    dataset = Samples("int", 30)
    sampler: Any = data.DistributedSampler(dataset, 1, 0)
    with make(dataset, batch_size=2, sampler=sampler) as train:
        for epoch in [0, 1, 2, 2, 2, 3]:
            sampler.set_epoch(epoch)
            list(train)
    assert outcomes == [True, True, False, True, False]


def test_a_training_that_draws_from_the_samplers_generator_is_not_foreseen(outcomes: list[bool]) -> None:
    with make(Samples("int", 40), batch_size=2, shuffle=True) as train:
        for _ in range(3):
            for _ in train:
                torch.rand(1)
    assert outcomes == []


def test_a_training_that_seeds_every_epoch_is_foreseen_once(outcomes: list[bool]) -> None:
    with make(Samples("int", 40), batch_size=2, shuffle=True) as train:
        for epoch in range(5):
            torch.manual_seed(epoch)
            list(train)
    assert outcomes == [False]


# -- where it must not be ------------------------------------------------------------------------------------------


class Counted(data.Sampler[int]):
    def __init__(self) -> None:
        self.iterated = 0

    def __iter__(self) -> Iterator[int]:
        self.iterated += 1
        return iter(range(12))

    def __len__(self) -> int:
        return 12


class CountedRandom(data.RandomSampler):
    """A subclass of torch's, with code of its own."""

    iterated = 0

    def __iter__(self) -> Iterator[int]:
        self.iterated += 1
        return super().__iter__()


@pytest.mark.parametrize("sampler", [Counted(), CountedRandom(range(12))], ids=["own", "subclass"])
def test_samplers_of_the_users_are_iterated_over_as_often_as_torch_does(sampler: Any, outcomes: list[bool]) -> None:
    def iterated(make_loader: Any) -> int:
        sampler.iterated = 0
        train = make_loader()
        for _ in range(3):
            list(train)
        return int(sampler.iterated)

    theirs = iterated(
        lambda: data.DataLoader(Samples("int", 12), sampler=sampler, num_workers=1, persistent_workers=True)
    )
    assert iterated(lambda: make(Samples("int", 12), sampler=sampler)) == theirs
    assert outcomes == []


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (Samples("int", 12), {"prefetch_epochs": False}),
        (Samples("int", 12), {"workers": "thread"}),
        (Stream("int", 12), {}),
    ],
    ids=["off", "threads", "iterable"],
)
def test_nothing_is_made_ahead_where_it_should_not(dataset: Any, arguments: Any, outcomes: list[bool]) -> None:
    with make(dataset, batch_size=2, **arguments) as train:
        for _ in range(3):
            for _ in train:
                assert conductor_of(train).foreseen is None
    assert outcomes == []


class Staged(Samples):
    """Samples depend on a number that training shares with workers."""

    def __init__(self, stage: Any) -> None:
        super().__init__("int", 12)
        self.stage = stage

    def __getitem__(self, key: Any) -> Any:
        return int(self.stage[0])


@pytest.mark.parametrize(
    "stage",
    [torch.zeros(1, dtype=torch.int64).share_memory_(), multiprocessing.Array("i", 1)],
    ids=["tensor", "multiprocessing"],
)
def test_what_training_shares_with_workers_and_changes_between_epochs_holds_from_the_first_batch_on(
    stage: Any,
) -> None:
    with make(Staged(stage), batch_size=2) as train:
        for epoch in range(4):
            stage[0] = epoch
            for batch in train:
                assert batch.tolist() == [epoch, epoch]
                time.sleep(0.005)


def test_shared_memory_is_found_where_batches_are_made(tmp_path: Path) -> None:
    counter = multiprocessing.Value("i", 0)
    np.zeros(3).tofile(tmp_path / "array")
    held = Samples()
    held.transform = lambda value: value + counter.value  # type: ignore[attr-defined]
    bound = Samples()
    bound.inner = {"deep": [Staged(counter).__getitem__]}  # type: ignore[attr-defined]
    mapped = Samples()
    mapped.array = np.memmap(tmp_path / "array", mode="r+")  # type: ignore[attr-defined]
    assert shares(held)
    assert shares(bound)
    assert shares(mapped)
    assert shares(Samples(), lambda batch: (batch, counter))
    read_only = Samples()
    read_only.array = np.memmap(tmp_path / "array", mode="r")  # type: ignore[attr-defined]
    listed = Samples()
    listed.samples = loader.SharedList(["a", "b"])  # type: ignore[attr-defined]
    assert not shares(read_only, torch.utils.data.default_collate)
    assert not shares(listed)
    assert not shares(loader.cached(Samples("tensor", 4), memory="1 MB"))
    assert shares(loader.cached(held, memory="1 MB"))


# -- errors, accidents, ends ---------------------------------------------------------------------------------------


class Failing(Samples):
    """One sample is bad; one waits for as long as there is a file."""

    def __init__(self, length: int, bad: int = -1, held: int = -1, gate: str = "") -> None:
        super().__init__("int", length)
        self.bad, self.held, self.gate = bad, held, gate

    def __getitem__(self, key: Any) -> Any:
        if key == self.bad:
            raise ValueError(f"sample {key} is bad")
        while key == self.held and Path(self.gate).exists():
            time.sleep(0.005)
        return super().__getitem__(key)


def drain(train: Any, before_last: Any = None) -> list[Any]:
    """The batches of an epoch, or their errors."""
    got: list[Any] = []
    iterator, length = iter(train), len(train)
    while True:
        if len(got) == length - 1 and before_last is not None:
            before_last()
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            return got
        except ValueError as error:
            got.append(str(error).partition("\n")[0])


def test_an_error_in_a_foreseen_batch_comes_in_its_place(outcomes: list[bool]) -> None:
    with make(Failing(24, bad=3), batch_size=2) as train:
        good = [[each, each + 1] for each in range(0, 24, 2)]
        for _ in range(3):
            got = drain(train, before_last=lambda: wait_for_foreseen(train, DEPTH - 1))
            assert "sample 3 is bad" in str(got[1]) or "ValueError" in str(got[1])
            assert [got[0], *got[2:]] == [good[0], *good[2:]]
        assert train.stats().errors.count == 3
    assert outcomes == [True, True]


def test_an_error_in_a_batch_that_is_thrown_away_never_comes(outcomes: list[bool]) -> None:
    order = list(range(24))
    with make(Failing(25, bad=3), batch_size=2, sampler=order) as train:
        drain(train, before_last=lambda: wait_for_foreseen(train, DEPTH - 1))
        order[3] = 24
        assert drain(train)[1] == [2, 24]
        assert train.stats().errors.count == 1
    assert outcomes == [False]


@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_worker_killed_at_a_foreseen_batch_costs_nothing(adopted: bool, tmp_path: Path, outcomes: list[bool]) -> None:
    gate = tmp_path / "gate"
    order = list(range(24))
    with make(Failing(24, held=1, gate=str(gate)), batch_size=2, sampler=order) as train:
        begun = iter(train)
        next(begun)
        gate.touch()  # batch 0 is made: what waits at it from now on is the next epoch's
        assert [batch.tolist() for batch in begun] == [[each, each + 1] for each in range(2, 24, 2)]

        def holder() -> Any:
            foreseen, roster = conductor_of(train).foreseen, conductor_of(train).roster
            task: Any = None if foreseen is None else foreseen.window.waited_for()
            if task is None:
                return None
            return next((each.pid for each in roster if each.key == task.worker and each.started() > task.number), None)

        os.kill(wait_until(holder, "a worker at the foreseen batch"), signal.SIGKILL)
        wait_until(lambda: train.stats().recoveries == 1, "its death")
        gate.unlink()
        if not adopted:
            order.reverse()
        assert drain(train) == [order[at : at + 2] for at in range(0, 24, 2)]
        assert train.stats().recoveries == 1
    assert outcomes == [adopted]


@pytest.mark.parametrize("how", ["close", "del", "refresh", "load"])
def test_what_was_foreseen_ends_with_its_pool(how: str, outcomes: list[bool]) -> None:
    train = make(Samples("big", 24), batch_size=2)
    list(train)
    wait_for_foreseen(train)
    iterator = weakref.ref(train._iterator)
    foreseen = conductor_of(train).foreseen
    over = conductor_of(train).over
    if how == "close":
        train.close()
    elif how == "del":
        gc.disable()  # by reference counts alone
        try:
            del train
            assert iterator() is None
        finally:
            gc.enable()
    else:
        if how == "refresh":
            train.refresh()
        else:
            train.load_state_dict(train.state_dict())
        assert len(list(train)) == 12
        train.close()
    assert over.wait(60)
    assert foreseen.abandoned and not foreseen.ready and not foreseen.window.held
    assert outcomes == []


def test_a_pause_holds_for_the_next_epoch_too() -> None:
    with make(Samples("int", 40), batch_size=2) as train:
        begun = iter(train)
        for _ in range(len(train) - DEPTH):
            next(begun)
        wait_until(lambda: train.stats().queues.data == DEPTH, "the last batches, which fill the window")
        train.pause()
        made = [worker.progress(0).batches for worker in conductor_of(train).roster]
        for _ in range(DEPTH - 1):
            next(begun)
        wait_until(lambda: conductor_of(train).foreseen is not None, "the next epoch's tasks")
        assert foreseen_finished(train) == 0
        assert [worker.progress(0).batches for worker in conductor_of(train).roster] == made
        train.resume()
        wait_for_foreseen(train, DEPTH - 1)  # one place of the window is the last batch's of this epoch
        assert len(list(begun)) == 1
        assert len(list(train)) == 20


def test_spans_are_those_of_batches_that_an_epoch_was_made_of(
    outcomes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.telemetry.spans.RATE", 1e9)  # none are left out, however fast they come
    order = list(range(24))
    with make(Samples("int", 24), batch_size=2, sampler=order) as train:
        list(train)
        ledger = train._penstock.ledger
        ledger.spans.watch(time.monotonic_ns())
        told: dict[int, list[int]] = {1: [], 2: [], 3: []}
        yielded: set[tuple[int, int]] = set()
        for epoch in range(1, 4):
            if epoch == 2:
                order.reverse()
            list(train)
            wait_for_foreseen(train)
            for event in ledger.take_events():
                if isinstance(event, Spans):
                    for span in event.spans:
                        told[span.epoch].append(span.batch)
                    yielded.update(
                        (each.epoch, each.batch) for each in [*event.spans, *event.late] if each.yielded_us >= 0
                    )
        assert {epoch: sorted(batches) for epoch, batches in told.items()} == {epoch: list(range(12)) for epoch in told}
        assert yielded == {(epoch, batch) for epoch in told for batch in range(12)}
    assert outcomes == [True, False, True]


def test_foreseeing_takes_time_of_the_samplers_kind_and_every_moment_has_one(outcomes: list[bool]) -> None:
    with make(Samples("int", 24), batch_size=2, shuffle=True) as train:
        for _ in range(3):
            moments = Moments(train._penstock.ledger.times)
            begun = iter(train)
            before = train.stats().epoch_times.sampler_us
            for _ in begun:
                time.sleep(0.002)
            moments.end()
            times = train.stats().epoch_times
            booked = sum(getattr(times, kind) for kind in times.__struct_fields__) - before
            assert times.sampler_us > before
            assert abs(moments.us - booked) <= len(times.__struct_fields__) + 1
    assert outcomes == [True, True]


def test_an_epoch_that_begins_paused_has_nothing_ready(outcomes: list[bool]) -> None:
    with make(Samples("int", 24), batch_size=2) as train:
        list(train)
        wait_for_foreseen(train)
        train.pause()
        begun = iter(train)
        assert not train._iterator._epoch.ready
        train.resume()
        assert [batch.tolist() for batch in begun] == [[each, each + 1] for each in range(0, 24, 2)]
    assert outcomes == []


# -- foresight itself ----------------------------------------------------------------------------------------------


def test_foresight_draws_from_nobody() -> None:
    generator = torch.Generator()
    sampler = data.BatchSampler(data.RandomSampler(range(100), generator=generator), 7, False)
    foresight = Foresight(sampler)
    before = generator.get_state(), torch.get_rng_state()
    foresight.settle()
    found = foresight.batches(3)
    assert torch.equal(before[0], generator.get_state())
    assert torch.equal(before[1], torch.get_rng_state())
    assert found == list(sampler)[:3]


@pytest.mark.parametrize("draws", [0, 1, 5, MOST_DRAWS, MOST_DRAWS + 1])
def test_foresight_learns_how_many_seeds_others_draw(draws: int) -> None:
    sampler = data.BatchSampler(data.RandomSampler(range(50)), 5, False)
    foresight, right = Foresight(sampler), []
    for _ in range(4):
        foresight.settle()
        found = foresight.batches(4)
        for _ in range(draws):
            torch.empty((), dtype=torch.int64).random_()
        foresight.learn()
        right.append(found == list(sampler)[:4])
    assert right == [draws == 0] + [draws <= MOST_DRAWS] * 3


def test_foresight_says_nothing_of_indices_that_are_not_plain_numbers() -> None:
    sampler = data.SubsetRandomSampler([torch.zeros(2), torch.ones(2)])  # type: ignore[list-item]
    foresight = Foresight(data.BatchSampler(sampler, 1, False))
    foresight.settle()
    assert foresight.batches(2) is None
