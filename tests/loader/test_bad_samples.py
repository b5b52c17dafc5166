"""One bad sample must not end a night's training, nor make it depend on who met it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock import SubsetRandomSampler, TooManyErrorsError
from penstock.protocol import ErrorEvent, QuarantineEvent
from penstock.tolerating import Bad, Tolerance, TolerantFetcher, attempted, named
from torch.utils.data import Dataset, IterableDataset

from tests.loader.support import DataLoader, draw

LENGTH = 60
BAD = {3, 4, 17, 41, 42, 43, 44}
OPTIONS: Any = {"batch_size": 4, "shuffle": True, "monitor": False, "max_errors": 1.0}


class Corrupt(Dataset[Any]):
    """Some samples fail after they have drawn random numbers; each that is tried is written down."""

    def __init__(self, bad: set[int] = BAD, log: Path | None = None) -> None:
        self.bad = bad
        self.log = log

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        drawn = draw()
        if index in self.bad:
            raise OSError(f"file {index} is corrupt")
        return index, drawn


class CorruptTogether(Corrupt):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def make(dataset: Any = None, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(7)
    return DataLoader(Corrupt() if dataset is None else dataset, **{**OPTIONS, "generator": generator, **options})


def seen(batches: Any) -> list[Any]:
    return [(indices.tolist(), drawn.tolist()) for indices, drawn in batches]


def flat(batches: list[Any]) -> list[int]:
    return [index for indices, _ in batches for index in indices]


@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_the_epoch_is_the_same_for_every_number_of_workers_and_after_a_resume(mode: str) -> None:
    one = make(on_error=mode, num_workers=1, persistent_workers=True)
    first, second = seen(one), seen(one)
    digest = one.stats().digest
    three = make(on_error=mode, num_workers=3, persistent_workers=True)
    batches = iter(three)
    begun = [next(batches) for _ in range(4)]
    state = json.loads(json.dumps(three.state_dict()))
    three.resize(1)
    assert seen(begun) + seen(batches) == first
    assert seen(three) == second
    assert three.stats().digest == digest
    three.close()
    resumed = make(on_error=mode, num_workers=2, persistent_workers=True)
    resumed.load_state_dict(state)
    assert seen(resumed) == first[4:]
    assert seen(resumed) == second
    assert resumed.stats().digest == digest
    inline = make(on_error=mode)
    assert flat(seen(inline)) == flat(first), "only random numbers are training's own there"
    good = set(range(LENGTH)) - BAD
    assert set(flat(first)) == set(flat(second)) == good
    if mode == "skip":
        assert sorted(flat(first)) == sorted(good)
    else:
        assert [len(indices) for indices, _ in first] == [4] * 15
    assert {each.index for each in one.stats().quarantined} == {str(index) for index in BAD}
    assert one.stats().bad == len(BAD)
    worst = one.stats().quarantined[0]
    assert worst.error == f"OSError: file {worst.index} is corrupt"
    assert "__getitem__" in worst.traceback
    assert worst.times == 2, "once more than once"


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_end_the_epoch_and_are_listed(workers: int) -> None:
    loader = make(on_error="skip", num_workers=workers, max_errors=2, shuffle=False)
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0, 1, 2]
    with pytest.raises(TooManyErrorsError, match=r"3 samples of epoch 0 were bad by batch 4[\s\S]*sample 17: OSError"):
        list(batches)
    with pytest.raises(TooManyErrorsError):
        next(batches)
    share = make(on_error="skip", num_workers=workers, max_errors=0.1, shuffle=False)
    with pytest.raises(TooManyErrorsError, match="7 samples"):
        list(share)
    assert len(list(make(on_error="skip", num_workers=workers, max_errors=0.2))) == 15
    with pytest.raises(OSError, match="is corrupt"):
        list(make(num_workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_which_nothing_is_left_are_passed_over(workers: int) -> None:
    options = {"on_error": "skip", "num_workers": workers, "shuffle": False}
    singles = [int(index) for index, _ in make(**options, batch_size=None)]
    assert singles == sorted(set(range(LENGTH)) - BAD)
    loader = make(**options, batch_size=2)
    assert flat(seen(loader)) == singles
    assert len(flat(seen(make(CorruptTogether(), **options)))) == len(singles)

    def collate(samples: list[Any]) -> Any:
        if samples[0][0] == 8:
            raise ValueError("shapes differ")
        return torch.utils.data.default_collate(samples)

    uncollated = make(Corrupt(set()), **options, collate_fn=collate)
    assert flat(seen(uncollated)) == [index for index in range(LENGTH) if not 8 <= index < 12]
    (entry,) = uncollated.stats().quarantined
    assert (entry.where, entry.batch, entry.error) == ("collate_fn", 2, "ValueError: shapes differ")


def test_what_stands_in_comes_from_where_the_sampler_draws() -> None:
    part = list(range(20))
    loader = make(on_error="replace", num_workers=1, shuffle=None, sampler=SubsetRandomSampler(part))
    epoch = flat(seen(loader))
    assert len(epoch) == 20
    assert set(epoch) == set(part) - BAD


def test_the_next_run_begins_with_the_quarantine_of_this_one(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "quarantine.jsonl"
    first = seen(make(Corrupt(log=log), on_error="replace", num_workers=2, quarantine=path))
    assert log.read_text().split().count("17") >= 2
    log.unlink()
    assert seen(make(Corrupt(log=log), on_error="replace", num_workers=1, quarantine=str(path))) == first
    tried = set(map(int, log.read_text().split()))
    assert tried == set(range(LENGTH)) - BAD
    assert sorted(json.loads(line)["index"] for line in path.read_text().splitlines()) == sorted(BAD)
    path.write_text("nonsense\n")
    with pytest.raises(ValueError, match="line 1 of quarantine="):
        make(on_error="skip", quarantine=path)
    for wrong in ({"on_error": "ignore"}, {"max_errors": 1.5}, {"max_errors": -1}, {"retries": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make(**wrong)


class Stream(IterableDataset[Any]):
    def __init__(self, generator: bool) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        return iter(Numbers()) if not self.generator else (number for number in Numbers())


class Numbers(Iterator[int]):
    def __init__(self) -> None:
        self.at = -1

    def __next__(self) -> int:
        self.at += 1
        if self.at >= 12:
            raise StopIteration
        if self.at in (2, 3):
            raise OSError(f"item {self.at}")
        return self.at


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_goes_on_where_its_iterator_can(workers: int) -> None:
    loader = make(Stream(generator=False), on_error="skip", num_workers=workers, shuffle=None, max_errors=2)
    assert [batch.tolist() for batch in loader] == [[0, 1, 4, 5], [6, 7, 8, 9], [10, 11]]
    assert [each.error for each in loader.stats().quarantined] == ["OSError: item 2", "OSError: item 3"]
    generator = make(Stream(generator=True), on_error="skip", num_workers=workers, shuffle=None)
    with pytest.raises(OSError, match="item 2") as raised:
        list(generator)
    told = "".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert "is a generator, which an error ends" in told


class Dangerous(Corrupt):
    """Some samples hang, one ends its process, in workers."""

    def __getitem__(self, index: int) -> Any:
        if index in (10, 33) and torch.utils.data.get_worker_info() is not None:
            threading.Event().wait()
        if index == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_samples_that_hang_or_end_their_worker_are_left_out(mode: str) -> None:
    options = {"on_error": mode, "sample_timeout": 1.0, "max_retries": 1, "persistent_workers": True}
    gone = BAD | {10, 33, 50}
    epochs = []
    for workers in (1, 3):
        loader = make(Dangerous(), num_workers=workers, **options)
        with pytest.warns(UserWarning, match="killed by signal"):
            first = seen(loader)
        epochs.append([first, seen(loader), loader.stats().digest])
        assert set(flat(first)) == set(range(LENGTH)) - gone
        found = {each.index: each for each in loader.stats().quarantined}
        assert set(found) == {str(index) for index in gone}
        assert found["10"].error == "TimeoutError: it took more than 1 s (sample_timeout)"
        assert "wait" in found["10"].traceback, "the stack at that moment"
        assert "SIGKILL" in found["50"].error
        assert found["50"].times == 2
        loader.close()
    assert epochs[0] == epochs[1]
    with pytest.raises(ValueError, match="sample_timeout needs on_error"):
        make(sample_timeout=1.0)


def test_what_is_to_stand_in_and_hangs_is_left_out_too() -> None:
    """Else the batch would be made again and again, with the same one in the place."""
    fetcher = TolerantFetcher(Corrupt({1}), True, Tolerance(True, 0, set(), LENGTH), base_seed=5)
    places: list[int] = []
    fetcher.mark = lambda place, _: places.append(place)
    first = [index for index, _ in fetcher.fetch([0, 1])]
    tried = places[-2]
    assert tried == attempted(1, 0)
    fetcher.without = {tried: Bad(None, "dataset", "TimeoutError: too long", "", 1, fatal=True)}
    fetcher._tolerance.known.clear()
    second = [index for index, _ in fetcher.fetch([0, 1])]
    assert (first[0], len(second), second[1] != first[1]) == (0, 2, True)
    assert [(bad.index, bad.stand_in) for bad in fetcher.bad] == [(1, False), (first[1], True)]


class Large(Dataset[Any]):
    """1 % of its samples fail, 0.1 % hang."""

    length = 2000

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        drawn = draw()
        if index % 1000 == 77:
            threading.Event().wait()
        if index % 100 == 3:
            raise OSError(f"file {index} is corrupt")
        return index, drawn


def test_the_stream_is_the_same_for_1_and_8_workers_with_resizes_and_after_a_resume() -> None:
    options = {"on_error": "replace", "sample_timeout": 2.0, "retries": 0, "batch_size": 20}
    alone = make(Large(), num_workers=1, **options)
    expected = seen(alone)
    assert [len(indices) for indices, _ in expected] == [20] * 100
    many = make(Large(), num_workers=8, **options)
    batches, begun, state = iter(many), [], None
    for place in range(100):
        if place == 50:
            state = json.loads(json.dumps(many.state_dict()))
        if place % 20 == 5:
            many.resize((3, 8, 1, 6, 8)[place // 20])
        begun += seen([next(batches)])
    assert next(batches, None) is None
    assert begun == expected
    resumed = make(Large(), num_workers=3, **options)
    resumed.load_state_dict(state)
    assert seen(resumed) == expected[50:]
    assert alone.stats().digest == many.stats().digest == resumed.stats().digest
    gone = {str(index) for index in range(2000) if index % 100 == 3 or index % 1000 == 77}
    for loader in (alone, many, resumed):
        assert {each.index for each in loader.stats().quarantined} == gone


def test_each_is_told_once_as_an_error_that_did_not_end_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"index": 3}\n{"index": "(1, 2)"}\n')
    loader = make(on_error="skip", num_workers=1, persistent_workers=True, quarantine=path)
    assert seen(loader) != seen(loader)
    events = loader._penstock.ledger.take_events()
    errors = [event for event in events if isinstance(event, ErrorEvent)]
    assert all(event.tolerated and not event.fatal and event.type == "OSError" for event in errors)
    assert errors[0].message == f"file {errors[0].sample} is corrupt"
    assert "__getitem__" in errors[0].traceback
    told = [sample.index for event in events if isinstance(event, QuarantineEvent) for sample in event.found]
    assert sorted(told) == sorted(["(1, 2)", *map(str, BAD)])
    assert loader.stats().errors.count == len(BAD) - 1, "one was known"
    assert loader.stats().state == "finished"
    assert [named(index) for index in (7, "a", (1, 2), torch.tensor(7))] == [7, "a", "(1, 2)", 7]
