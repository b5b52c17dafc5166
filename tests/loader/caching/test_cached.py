"""`penstock.cached`: each sample is made once, whoever asks for it, and what comes is what the dataset gives."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from penstock import ReadyBatch, cached
from penstock.caching import launches, places
from penstock.caching.dataset import find
from penstock.insight.words import micros
from torch.utils.data import Dataset, Subset, TensorDataset

from tests.loader.support import DataLoader, Scripts, Stream, WholeBatches, assert_same, draw, values

LENGTH = 24


class Decoded(Dataset[Any]):
    """Leaves a line in a file for every sample that it makes."""

    classes = ("cat", "dog")

    def __init__(self, log: Path, length: int = LENGTH) -> None:
        self.log, self.length = log, length
        self.position = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        return {"image": torch.full((3, 4), index), "label": index % 2}

    def made(self) -> list[int]:
        return sorted(map(int, self.log.read_text().split())) if self.log.exists() else []

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@pytest.fixture
def decoded(tmp_path: Path) -> Decoded:
    return Decoded(tmp_path / "made")


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_samples_are_made_once(decoded: Decoded, method: str | None) -> None:
    """By workers, too, that are started later, after a resize."""
    dataset = cached(decoded, memory="1 MB")
    plain = [torch.stack([torch.full((3, 4), i) for i in range(first, first + 4)]) for first in range(0, LENGTH, 4)]
    with DataLoader(
        dataset, 4, num_workers=2 if method else 0, multiprocessing_context=method, persistent_workers=method == "fork",
        prefetch_epochs=False,
    ) as loader:  # fmt: skip
        for epoch in range(3):
            if epoch == 2 and method:
                loader.resize(4)
            assert_same([batch["image"] for batch in loader], plain)
    assert decoded.made() == list(range(LENGTH))
    usage = dataset.usage()
    assert (usage.samples, usage.misses) == (LENGTH, LENGTH)
    assert usage.hits >= 2 * LENGTH  # more, if a task went to another worker at the moment its own took it up
    assert 0 < usage.bytes <= usage.budget == 1_000_000
    assert loader.stats().cache == usage
    assert f"67 % of 72 samples read, {micros(usage.saved_us)} saved; 24 kept" in str(loader.stats())
    del dataset, loader
    gc.collect()


def test_a_budget_of_a_few_kilobytes_is_kept_to(decoded: Decoded) -> None:
    dataset = cached(decoded, memory=4000)
    for _ in range(2):
        assert [dataset[index]["label"] for index in range(LENGTH)] == [index % 2 for index in range(LENGTH)]
    usage = dataset.usage()
    assert 0 < usage.samples < LENGTH
    assert usage.bytes <= 4000
    assert usage.hits == usage.samples
    assert len(decoded.made()) == 2 * LENGTH - usage.samples
    assert cached(decoded, memory=0)[3]["label"] == 1


def test_what_is_read_may_be_changed(decoded: Decoded) -> None:
    dataset = cached(decoded, transform=lambda sample: sample["image"].mul_(0).add_(1))
    for _ in range(3):
        assert dataset[5].tolist() == torch.ones(3, 4).tolist()
    dataset.transform = None
    assert_same(dataset[5], {"image": torch.full((3, 4), 5), "label": 1})


class Noisy(Dataset[Any]):
    """Draws while it makes a sample."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, draw()


def drawing(sample: Any) -> Any:
    return *sample, draw()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_transforms_random_numbers_do_not_depend_on_what_is_kept(workers: int) -> None:
    """And what is kept does not depend on the order in which samples were made."""
    epochs = []
    for order in (range(12), reversed(range(12)), ()):
        dataset = cached(Noisy(), transform=drawing)
        for index in order:
            dataset[index]
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        epochs.append(list(DataLoader(dataset, 4, num_workers=workers)))
    assert_same(epochs[1:], epochs[:1] * 2)
    kept, drawn = (torch.cat([batch[place] for batch in epochs[0]]) for place in (1, 2))
    assert len({tuple(row) for row in [*kept.tolist(), *drawn.tolist()]}) == 24


def test_the_dataset_is_seen_through(decoded: Decoded) -> None:
    dataset = cached(decoded)
    assert dataset.classes == ("cat", "dog")
    assert len(dataset) == LENGTH
    assert not hasattr(dataset, "targets")
    decoded.position = 7
    loader = DataLoader(Subset(dataset, [3, 4, 3]), 3)
    assert values(batch["label"] for batch in loader) == [[1, 0, 1]]
    assert DataLoader(dataset).state_dict()["dataset"] == {"position": 7}
    assert find(loader.dataset) is dataset
    assert decoded.made() == [3, 4]


def test_whole_batches_ask_for_what_is_missing_only() -> None:
    dataset = cached(WholeBatches(length=10))
    assert dataset[1] == 1
    batches = [dataset.__getitems__(indices) for indices in ([1, 2, 3], [3, 4, 1])]  # type: ignore[misc]
    assert batches == [[1, (2, 2), (2, 3)], [(2, 3), (1, 4), 1]]
    assert cached(TensorDataset(torch.arange(3))).__getitems__ is None
    assert "cache" not in str(DataLoader(TensorDataset(torch.arange(3))).stats())


class Ready(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitems__(self, indices: list[int]) -> Any:
        return ReadyBatch([torch.tensor(indices), torch.tensor(indices) * 2])


def test_ready_batches_are_kept_sample_by_sample() -> None:
    loader = DataLoader(cached(Ready()), 4)
    for _ in range(2):
        assert_same(
            list(loader), [[torch.arange(4), torch.arange(4) * 2], [torch.arange(4, 8), torch.arange(4, 8) * 2]]
        )


def test_indices_of_other_types() -> None:
    class Echo(Dataset[Any]):
        asked = 0

        def __getitem__(self, index: Any) -> Any:
            self.asked += 1
            return index

    echo = Echo()
    dataset = cached(echo, memory=10_000)
    index: Any
    for index in ("name", b"name", ("a", 3), -1, 2**62, np.int64(5)):
        assert dataset[index] == dataset[index] == index
    assert echo.asked == 6
    for index in (2**70, True, 1.5, None, slice(3)):
        assert dataset[index] == dataset[index] == index
    assert echo.asked == 16


def test_samples_that_cannot_be_pickled_are_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    class Lambdas(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return lambda: index

    dataset = cached(Lambdas())
    assert [dataset[3]() for _ in range(2)] == [3, 3]
    assert len(caplog.messages) == 1
    assert "cannot be kept" in caplog.messages[0]


def test_a_file_is_found_again_if_the_key_is_the_same(decoded: Decoded, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    for key, length in (("v1", LENGTH), ("v1", LENGTH), ("v2", LENGTH), ("v2", LENGTH - 1)):
        decoded.length = length
        dataset = cached(decoded, path=path, key=key, memory="1 MB")
        assert [dataset[index]["label"] for index in range(length)] == [index % 2 for index in range(length)]
        del dataset
    assert len(decoded.made()) == 3 * LENGTH - 1


RANK = """
import os, sys
from pathlib import Path
from penstock import cached
from penstock.caching.places import _found
from tests.loader.caching.test_cached import Decoded
dataset = cached(Decoded(Path(sys.argv[1])), memory="1 MB", key=sys.argv[2])
name = f"penstock-cache-{dataset._identity.hex()}"
if not os.fork():  # the second rank
    other = cached(Decoded(Path(sys.argv[1])), memory="1 MB", key=sys.argv[2])
    for index in range(0, 24):
        other[index]
    print("filled", flush=True)
    sys.stdin.readline()
    os._exit(0)
print(name, flush=True)
sys.stdin.readline()
"""


def test_processes_find_each_others_cache_and_nothing_is_left(decoded: Decoded, script: Scripts) -> None:
    key = f"test {os.getpid()}"
    with script(RANK, str(decoded.log), key) as running:
        said = {running.line(), running.line()}
        assert "filled" in said
        dataset = cached(decoded, memory="1 MB", key=key)
        assert [dataset[index]["label"] for index in range(LENGTH)] == [index % 2 for index in range(LENGTH)]
        assert decoded.made() == list(range(LENGTH))
        running.signal_group(9)
        running.finish()
    (name,) = said - {"filled"}
    del dataset
    gc.collect()
    assert list(places._found(name)) == []


def test_ranks_of_a_launch_share_without_a_key(decoded: Decoded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"test {os.getpid()}")
    first = cached(decoded)
    monkeypatch.setattr(launches, "_made", Counter())  # the second is another process's
    second, other = cached(decoded), cached(Decoded(decoded.log, 9))
    assert first[3]["label"] == second[3]["label"] == 1
    assert decoded.made() == [3]
    assert (second.usage().samples, other.usage().samples) == (1, 0)


def test_what_cannot_be_meant_is_refused(decoded: Decoded, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="map-style dataset is needed, not a Stream"):
        cached(Stream())
    with pytest.raises(ValueError, match="give a key"):
        cached(decoded, path=tmp_path / "cache")
    for memory in ("much", "-3 GB", -3, True, 1.5):
        with pytest.raises(ValueError, match="memory should be"):
            cached(decoded, memory=memory)  # type: ignore[arg-type]
