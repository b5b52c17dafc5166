"""The dataset that workers really have: a change that they do not know of is seen, and mere use of a dataset is not."""

from __future__ import annotations

import functools
import multiprocessing
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from penstock.fingerprint import LIMIT, changed, fingerprint
from torch.utils.data import Dataset, Subset

from tests.loader.support import DataLoader, Pair


class Inner:
    def __init__(self) -> None:
        self.size = 3
        self.scale = float("nan")


class Everything(Dataset[int]):
    """Has one of each kind of attribute."""

    def __init__(self) -> None:
        self.stage = 0
        self.name = "x" * 1000
        self.transform: Callable[[int], int] = abs
        self.steps = [Inner(), functools.partial(round, ndigits=2)]
        self.options = {"deep": {"deeper": 1}}
        self.tensor = torch.zeros(10)
        self.array = np.zeros(1000)
        self.samples = list(range(1000))
        self.shared = torch.zeros(3).share_memory_()
        self.counter = multiprocessing.Value("i", 0)
        self.generator = torch.Generator()
        self.random = random.Random(0)
        self.lock = threading.Lock()
        self.cache: dict[int, int] = {}
        self._loaded: list[int] = []
        self.me = self

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return self.transform(self.samples[index]) + self.stage


def set_all(dataset: Everything, name: str, value: Any) -> None:
    setattr(dataset, name, value)


CHANGES: dict[str, Callable[[Everything], Any]] = {
    "stage": lambda d: set_all(d, "stage", 1),
    "name": lambda d: set_all(d, "name", "x" * 999 + "y"),
    "transform": lambda d: set_all(d, "transform", lambda value: value),
    "steps[0].size": lambda d: setattr(d.steps[0], "size", 4),
    "steps[1].keywords['ndigits']": lambda d: d.steps.__setitem__(1, functools.partial(round, ndigits=3)),
    "options['deep']['deeper']": lambda d: d.options["deep"].update(deeper=2),
    "tensor": lambda d: d.tensor.add_(1),
    "array": lambda d: d.array.fill(1),
    "samples": lambda d: d.samples.append(1000),
    "samples[0]": lambda d: d.samples.reverse(),
}

USES: dict[str, Callable[[Everything], Any]] = {
    "nothing": lambda _: None,
    "a cache": lambda d: d.cache.update({1: 1}),
    "a private list": lambda d: d._loaded.append(1),
    "shared memory": lambda d: d.shared.add_(1),
    "a shared number": lambda d: setattr(d.counter, "value", 1),
    "draws": lambda d: (d.random.random(), torch.rand(1, generator=d.generator)),
    "a lock": lambda d: d.lock.acquire(),
    "made shared": lambda d: d.tensor.share_memory_(),  # as pickling it for a spawned worker does
    "a new attribute": lambda d: set_all(d, "opened", open),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_is_named(path: str) -> None:
    dataset = Everything()
    before = fingerprint(dataset)
    CHANGES[path](dataset)
    assert changed(before, fingerprint(dataset)) == path
    inside = Subset(Everything(), [0])
    before = fingerprint(inside)
    CHANGES[path](inside.dataset)  # type: ignore[arg-type]
    found = changed(before, fingerprint(inside))
    assert found == f"dataset.{path}" or path.count("[") + path.count(".") > 1


@pytest.mark.parametrize("use", USES)
def test_mere_use_is_no_change(use: str) -> None:
    dataset = Everything()
    before = fingerprint(dataset)
    USES[use](dataset)
    assert changed(before, fingerprint(dataset)) is None


def test_it_stays_small_and_nothing_breaks_it() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    wide: Any = Everything()
    wide.hostile = Hostile()
    wide.named = Pair(1, 2)
    wide.many = {number: {each: [each] * 20 for each in range(20)} for number in range(1000)}
    assert 10 < len(fingerprint(wide)) <= LIMIT


def test_persistent_workers_that_have_an_older_dataset_are_told_of_once_or_given_the_new_one() -> None:
    dataset = Everything()
    options: Any = {"batch_size": 500, "num_workers": 1, "persistent_workers": True, "monitor": False}
    for refresh, expected in (("warn", 0), ("auto", 3000), ("never", 0)):
        dataset.stage = 0
        with DataLoader(dataset, refresh=refresh, name="train", **options) as loader:
            first = [int(batch.sum()) for batch in loader]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                dataset.stage = 3
                later = [int(batch.sum()) for batch in loader]
                again = [int(batch.sum()) for batch in loader]
            told = [str(each.message) for each in caught if "has changed" in str(each.message)]
        assert sum(later) - sum(first) == sum(again) - sum(first) == expected
        assert len(told) == (refresh == "warn")
        assert all("Everything.stage of loader train" in each for each in told)
    with pytest.raises(ValueError, match="refresh must be one of 'warn', 'auto', 'never'"):
        DataLoader(dataset, refresh="always")
