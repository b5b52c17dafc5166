"""Several loaders in one thread: validation is not the train loader's compute; those that take turns are."""

from __future__ import annotations

import time

from msgspec.structs import astuple
from penstock import DataLoader
from penstock.protocol import Times
from torch.utils.data import Dataset

from tests.loader.support import Samples

STEP = 0.005


def numbers(many: int) -> DataLoader[int]:
    return DataLoader(Samples("int", many), monitor=None)


def total(times: Times) -> float:
    return float(sum(astuple(times))) / 1e6


def test_a_validation_loop_is_not_trainings_compute() -> None:
    train, validation = numbers(8), numbers(50)
    began = time.monotonic()
    for batch in train:
        time.sleep(STEP)
        if int(batch) == 3:
            steps = iter(validation)
            next(steps)
            before = train.stats().times
            for _ in steps:
                time.sleep(STEP)
                assert train.stats().times == before, "meanwhile its clock stands still"
            del steps
    own, other = train.stats().times, validation.stats().times
    assert other.compute_us >= 49 * STEP * 1e6
    assert own.compute_us >= 8 * STEP * 1e6
    assert total(own) + total(other) <= time.monotonic() - began, "no moment is both loaders'"


def test_after_validation_the_clock_goes_on() -> None:
    train, validation = numbers(4), numbers(3)
    steps = iter(train)
    next(steps)
    list(validation)
    before = train.stats().times.compute_us
    time.sleep(20 * STEP)
    assert train.stats().times.compute_us - before >= 19 * STEP * 1e6
    next(steps)
    assert train.stats().times.compute_us - before >= 19 * STEP * 1e6


def test_a_validation_that_is_left_early_counts_as_over() -> None:
    train, validation = numbers(4), numbers(100)
    steps = iter(train)
    next(steps)
    for _ in validation:
        time.sleep(10 * STEP)
        break
    time.sleep(10 * STEP)
    next(steps)
    own = train.stats().times.compute_us / 1e6
    assert own >= 10 * STEP, "what came after it is training's own"


def test_loaders_that_take_turns_are_part_of_each_others_steps() -> None:
    quick, slow = numbers(20), slowly()
    began = time.monotonic()
    for _ in zip(quick, slow, strict=True):
        time.sleep(STEP)
    fast, late = quick.stats().times, slow.stats().times
    waited = late.starvation_us + late.startup_us
    assert waited >= 20 * 3 * STEP * 1e6
    assert fast.compute_us >= 19 * 4 * STEP * 1e6, "as if the other one were part of the step"
    assert late.compute_us >= 19 * STEP * 1e6
    assert total(fast) <= time.monotonic() - began


def slowly() -> DataLoader[int]:
    return DataLoader(Sleepy(), monitor=None)


class Sleepy(Dataset[int]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        time.sleep(3 * STEP)
        return index
