"""Real loaders that are tuned: the stream stays the same, people rule, and every step is an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock import Autotune, DataLoader
from penstock.protocol import Event, TuningEvent
from penstock.tuning import lease
from torch.utils.data import Dataset, IterableDataset

from tests.patience import PATIENCE


class Slow(Dataset[torch.Tensor]):
    """Samples that wait, and draw random numbers."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.rand(2) + index


class Stream(IterableDataset[int]):
    """Cannot save its position, so its workers can only change between epochs."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for number in range(info.id, 400, info.num_workers):
            time.sleep(0.005)
            yield number


@pytest.fixture(autouse=True)
def host_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this machine are not waited for."""
    monkeypatch.setattr(lease, "_host", lease.Host(tmp_path))


class Watched:
    """A loader, iterated over batch by batch, and the steps of its tuner so far."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.steps: list[TuningEvent] = []
        self.batches: list[Any] = []
        self._iterator = iter(loader)
        self._deadline = time.monotonic() + PATIENCE

    def until(self, seen: Callable[[], object], what: str) -> None:
        while not seen():
            assert time.monotonic() < self._deadline, f"waited in vain for {what}; there were {self.steps}"
            self.train()

    def train(self) -> None:
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = iter(self.loader)
        else:
            self.batches.append(batch)
        time.sleep(0.002)
        events: list[Event] = self.loader._penstock.ledger.take_events()
        self.steps += [event for event in events if isinstance(event, TuningEvent)]

    def whats(self) -> list[str]:
        return [step.what for step in self.steps]


def make(seconds: float, **more: Any) -> DataLoader[torch.Tensor]:
    sampler = torch.utils.data.RandomSampler(Slow(0), generator=torch.Generator().manual_seed(3))
    return DataLoader(Slow(seconds), 4, sampler=sampler, generator=torch.Generator().manual_seed(5), **more)


def test_it_grows_obeys_and_changes_no_batch() -> None:
    with make(0.01, autotune=Autotune(max_workers=12), monitor=False) as loader:
        watched = Watched(loader)
        tuned = loader.stats().tuned
        assert tuned is not None and (tuned.state, loader.num_workers) == ("measuring", 1)
        watched.until(lambda: "keep" in watched.whats() and loader.num_workers >= 4, "more workers")
        first = watched.steps[0]
        assert (first.what, first.before) == ("try", 1)
        assert first.why and first.predicted and first.measured

        assert loader.resize(3).state == "applied"
        watched.until(lambda: "pinned" in watched.whats(), "the pin")
        pinned = len(watched.steps)
        reached = len(watched.batches) + 150
        watched.until(lambda: len(watched.batches) >= reached, "batches")
        tuned = loader.stats().tuned
        assert tuned is not None and (tuned.state, tuned.workers, loader.num_workers) == ("pinned", 3, 3)
        assert len(watched.steps) == pinned, "a pinned number was touched"

        assert loader.tune().state == "applied"
        watched.until(lambda: watched.whats()[pinned:][:2] == ["on", "try"], "a trial after the release")
        assert loader.tune(False).state == "applied"
        watched.until(lambda: watched.whats()[-1] == "off", "its end")
        assert loader.stats().tuned is None
        digest, batches = loader.stats().digest, watched.batches

    with make(0, num_workers=2, monitor=False) as plain:
        iterator = iter(plain)
        for batch in batches:
            assert torch.equal(next(iterator), batch)
        assert plain.stats().digest == digest


def test_a_dataset_that_cannot_move_is_tuned_between_epochs() -> None:
    with DataLoader(Stream(), 2, num_workers=1, autotune=True, monitor=False) as loader:
        watched = Watched(loader)
        watched.until(lambda: "keep" in watched.whats(), "a number that is kept")
        trial = next(step for step in watched.steps if step.what == "try")
        assert trial.workers > 1
        assert loader.num_workers > 1
        assert len(watched.batches) > 200, "it took more than an epoch"


def test_what_cannot_be_meant_is_said() -> None:
    with pytest.raises(TypeError, match="autotune must be True, False or an Autotune, but got autotune=3"):
        make(0, autotune=3)
    with pytest.raises(ValueError, match="with allow_control=False nobody may change the number of workers"):
        make(0, autotune=True, allow_control=False)
    with pytest.raises(ValueError, match="max_workers must be at least 4, but got max_workers=2"):
        Autotune(min_workers=4, max_workers=2)
    with pytest.raises(ValueError, match=r"tolerance must be from 0\.005 to 0\.5, but got tolerance=7"):
        Autotune(tolerance=7)
