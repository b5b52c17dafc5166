"""A loader among other people's code: torch's types outside, subclasses of any shape, a quiet end."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock import DataLoader, Outcome, Snapshot, WorkerLostError
from torch.utils import data
from torch.utils.data.dataloader import _BaseDataLoaderIter

import loader as alias
from tests.loader.scenarios import plain
from tests.loader.support import Samples
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [4, None])
def test_public_attributes_are_of_torchs_own_types(shuffle: bool, batch_size: int | None) -> None:
    ours, theirs = (kind(Samples(), batch_size, shuffle, num_workers=1) for kind in (DataLoader, data.DataLoader))
    for name in ("sampler", "batch_sampler", "batch_size", "drop_last", "collate_fn", "timeout", "pin_memory"):
        assert type(getattr(ours, name)) is type(getattr(theirs, name)), name
    own = set(vars(ours)) - set(vars(theirs))
    arguments = {name for name in inspect.signature(DataLoader).parameters if name not in vars(theirs)}
    assert own - {"_penstock"} <= arguments, "beside the arguments there is one private attribute"


class Meddlesome(DataLoader):  # type: ignore[type-arg]
    """Sets and defines every name that the engine has, or had."""

    stats = resize = pause = resume = close = register = refresh = None  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.ledger = self.engine = self.options = "mine"
        super().__init__(*arguments, **named)
        self.gate = self.is_closed = self.is_iterable = self.publisher = self.loader = self.place = "mine"
        self.name = 5  # type: ignore[assignment]
        for name in ("max_retries", "memory_budget", "stack_after", "record_samples"):
            setattr(self, name, "mine")

    @property
    def monitor(self) -> str:  # type: ignore[override]
        return "mine"

    def max_workers(self) -> str:  # type: ignore[override]
        return "mine"

    def state(self) -> str:
        return "mine"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_may_set_and_define_what_it_likes(workers: int) -> None:
    made = Meddlesome(Samples("int", 20), 4, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(2):
        assert plain(made) == plain(data.DataLoader(Samples("int", 20), 4))
    state = made.state_dict()
    made.load_state_dict(state)
    assert (made.monitor, made.max_workers(), made.ledger, made.gate) == ("mine",) * 4
    made._penstock.close()


class Filtered:
    """PyG's shape: an iterator around ours, which the loader then keeps and resets."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Filtered:
        return self

    def __next__(self) -> Any:
        return next(self.iterator) + 100

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.iterator._reset(loader, first_iter)


class NodeLoader(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return Filtered(super()._get_iterator())


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_get_iterator_may_be_overridden(workers: int, persistent: bool) -> None:
    made = NodeLoader(Samples("int", 6), num_workers=workers, persistent_workers=persistent)
    for _ in range(2):
        assert [batch.item() for batch in made] == [100, 101, 102, 103, 104, 105]
    made.close()


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_iterators_are_torchs_to_those_who_look(workers: int, persistent: bool) -> None:
    made = DataLoader(Samples("int", 40), num_workers=workers, persistent_workers=persistent)
    iterator: Any = iter(made)
    assert issubclass(type(iterator), _BaseDataLoaderIter)
    next(iterator)
    assert iterator._num_yielded == 1
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iterator)
    if workers:
        processes = iterator._workers
        assert len(processes) == 2 and all(each.is_alive() for each in processes)
        assert {each.pid for each in processes}.isdisjoint({os.getpid(), 0})
        iterator._shutdown_workers()
        for each in processes:
            each.join(PATIENCE)
            assert not each.is_alive()
    if persistent:
        made._iterator = None  # as Lightning does after it
        assert len(list(made)) == 40
    del iterator
    made.close()


def test_copies_are_loaders_of_their_own() -> None:
    made = DataLoader(Samples("int", 8), num_workers=1, name="first", max_retries=5)
    list(made)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (other.name, other.max_retries, other.stats().batches) == ("first", 5, 0)
        assert plain(other) == plain(made)
        assert other._penstock is not made._penstock
        other.close()
    assert len(list(made)) == 8
    made.close()


class CopiesItself(DataLoader[Any]):
    """Says itself how it is copied, and knows nothing of us."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def test_a_subclass_may_say_itself_how_it_is_copied() -> None:
    made = CopiesItself(Samples("int", 8), num_workers=1)
    others = [copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    for other in others:
        assert plain(other) == plain(data.DataLoader(Samples("int", 8)))
        other.close()
    assert len(list(made)) == 8, "closing a copy closes nothing else"
    made.close()


def test_a_with_block_closes_the_loader() -> None:
    with DataLoader(Samples("int", 8), num_workers=1) as made:
        next(iter(made))
    assert made.stats().state == "closed"
    with pytest.raises(RuntimeError, match="closed"):
        iter(made)


@pytest.mark.parametrize(("name", "error"), [(5, TypeError), (None, TypeError), ("", ValueError)])
def test_a_name_is_checked(name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="name"):
        DataLoader(Samples(), name=name)
    with pytest.raises(error, match="name"):
        penstock.watch([1], name=name)


def test_the_public_module_shows_its_names_and_says_what_they_are() -> None:
    for module in (penstock, alias):
        assert set(penstock.__all__) <= set(dir(module))
    assert {"DataLoader", "Outcome", "Snapshot", "WorkerLostError", "watch"} <= set(penstock.__all__)
    with DataLoader(Samples("int", 4), num_workers=1) as made:
        assert isinstance(made.stats(), Snapshot)
        assert isinstance(made.resize(2), Outcome)
    assert issubclass(WorkerLostError, RuntimeError)
    undocumented = [name for name in penstock.__all__ if not inspect.getdoc(getattr(penstock, name))]
    assert not undocumented
    defaults = [inspect.signature(each).parameters["name"].default for each in (DataLoader, penstock.watch)]
    assert defaults == ["loader", "loader"], "defaults are alike"
    annotations = inspect.get_annotations(DataLoader.__init__)
    assert "Any" not in (annotations["sampler"].replace("[Any]", ""), annotations["generator"])


AT_EXIT = """
import sys, torch
from penstock import DataLoader
from torch.utils.data import TensorDataset

if __name__ == "__main__":
    train = DataLoader(TensorDataset(torch.arange(10_000)), num_workers=2, persistent_workers=sys.argv[1] == "loader")
    iterator = iter(train)
    next(iterator)
    if sys.argv[1] == "cycle":
        train.me = iterator.me = [train, iterator]
        del train, iterator
"""


@pytest.mark.parametrize("what", ["loader", "iterator", "cycle"])
def test_the_interpreter_ends_without_a_word(tmp_path: Path, what: str) -> None:
    """With a module-level loader or iterator, which dies when modules are taken apart."""
    script = tmp_path / "train.py"
    script.write_text(AT_EXIT)
    for _ in range(3):
        command = [sys.executable, str(script), what]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Remembers(data.Dataset[Any]):
    """A map-style dataset with a state of its own."""

    def __init__(self) -> None:
        self.offset = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return self.offset + index

    def state_dict(self) -> dict[str, int]:
        return {"offset": self.offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.offset = state["offset"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_map_style_dataset_s_own_state_is_saved_and_loaded(workers: int) -> None:
    first = DataLoader(Remembers(), 4, num_workers=workers)
    first.dataset.offset = 100  # type: ignore[attr-defined]
    iterator: Iterator[Any] = iter(first)
    next(iterator)
    again = DataLoader(Remembers(), 4, num_workers=workers, persistent_workers=workers > 0)
    list(again)
    again.load_state_dict(first.state_dict())
    assert plain(again) == [[104, 105, 106, 107], [108, 109, 110, 111]]
    del iterator
    again.close()
    first.close()


def test_torch_is_not_changed_by_it() -> None:
    assert torch.utils.data.DataLoader is data.DataLoader is not DataLoader
