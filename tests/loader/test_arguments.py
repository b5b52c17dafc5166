"""Arguments: torch's errors, warnings, attributes and lengths, word for word."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from penstock.arguments import Assumed
from torch.utils.data import IterableDataset

from tests.loader.support import (
    DataLoader,
    Samples,
    SizedStream,
    Stream,
    values,
)

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

KINDS: tuple[Any, Any] = (DataLoader, torch.utils.data.DataLoader)


def complaint(act: Callable[[], Any]) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:
        act()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"prefetch_factor": -1, "num_workers": 1},
        {"persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": -2},
        {"batch_size": 1.5},
        {"drop_last": "yes"},
        {"shuffle": True, "dataset": []},
        {"multiprocessing_context": "fork"},
        {"multiprocessing_context": "threads", "num_workers": 1},
        {"multiprocessing_context": 5, "num_workers": 1},
        {"dataset": Stream(), "shuffle": True},
        {"dataset": Stream(), "sampler": [1]},
        {"dataset": Stream(), "batch_sampler": [[1]]},
        {"generator": 5, "shuffle": True, "dataset": [1, 2]},
    ],
    ids=repr,
)
def test_constructor_errors_are_torchs(arguments: dict[str, Any]) -> None:
    arguments = {"dataset": Samples(), **arguments}
    ours, theirs = ([complaint(lambda k=kind: list(k(**arguments)))] for kind in KINDS)  # type: ignore[misc]
    assert ours == theirs


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own, in its __del__
@pytest.mark.parametrize(
    "arguments",
    [{"timeout": 1}, {"prefetch_factor": 0, "num_workers": 1}, {"dataset": Samples(length=0), "shuffle": 2}],
)
def test_errors_on_iterating_are_torchs(arguments: dict[str, Any]) -> None:
    def outcome(kind: Any) -> Any:
        try:
            return list(kind(**{"dataset": Samples(), **arguments}))
        except Exception as error:
            return type(error), str(error).replace("PooledIterator", "_MultiProcessingDataLoaderIter")

    assert outcome(DataLoader) == outcome(torch.utils.data.DataLoader)


@pytest.mark.parametrize("name", ["memory_budget", "max_workers"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_our_own_arguments_name_what_is_wrong(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{name}.*{value!r}"):
        DataLoader(Samples(), **{name: value})


def test_our_arguments_are_keyword_only() -> None:
    seventeen: list[Any] = [Samples(), 1, None, None, None, 0, None, False, False, 0, None, None, None]
    DataLoader(*seventeen)
    with pytest.raises(TypeError):
        DataLoader(*seventeen, "name")


@pytest.mark.parametrize(
    "attribute", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_protected_attributes(attribute: str) -> None:
    ours, theirs = (complaint(lambda k=kind: setattr(k(Samples()), attribute, 1)) for kind in KINDS)  # type: ignore[misc]
    assert ours == theirs


def test_a_multiprocessing_context_can_be_set_and_is_checked() -> None:
    made = DataLoader(Samples(), num_workers=1)
    assert made.multiprocessing_context is None
    made.multiprocessing_context = "fork"
    assert made.multiprocessing_context.get_start_method() == "fork"
    made.multiprocessing_context = torch.multiprocessing.get_context("spawn")
    assert made.multiprocessing_context.get_start_method() == "spawn"
    for wrong in ("threads", 3):
        ours, theirs = (
            complaint(lambda k=kind: setattr(k(Samples(), num_workers=1), "multiprocessing_context", wrong))  # type: ignore[misc]  # noqa: B023
            for kind in KINDS
        )
        assert ours == theirs


def test_it_is_a_torch_data_loader() -> None:
    assert isinstance(DataLoader(Samples()), torch.utils.data.DataLoader)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"sampler": [1, 2]},
        {"batch_sampler": [[1], [2, 3]]},
        {"dataset": SizedStream(), "batch_size": 3},
        {"dataset": SizedStream(), "batch_size": 3, "drop_last": True},
        {"dataset": SizedStream(), "batch_size": None},
    ],
    ids=repr,
)
def test_lengths(arguments: dict[str, Any]) -> None:
    arguments = {"dataset": Samples(), **arguments}
    assert len(DataLoader(**arguments)) == len(torch.utils.data.DataLoader(**arguments))


def test_a_stream_without_length_has_none() -> None:
    ours, theirs = (complaint(lambda k=kind: len(k(Stream()))) for kind in KINDS)  # type: ignore[misc]
    assert ours == theirs


def test_attributes_are_torchs() -> None:
    for arguments in ({}, {"num_workers": 2}, {"batch_size": None}, {"batch_sampler": [[1]]}):
        ours, theirs = (vars(kind(Samples(), **arguments)) for kind in KINDS)
        for name in theirs.keys() - {"sampler", "batch_sampler"}:
            kind_of_ours = int if isinstance(ours[name], Assumed) else type(ours[name])
            assert kind_of_ours is type(theirs[name]), name
            if isinstance(theirs[name], int | float | str | bool | None):
                assert ours[name] == theirs[name], name
        for name in ("sampler", "batch_sampler"):
            assert isinstance(ours[name], type(theirs[name])), name


class Liar(IterableDataset[int]):
    """Says that it is shorter than it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return "Liar()"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_lies_about_its_length_gets_torchs_warning(workers: int) -> None:
    def heard(kind: Any) -> list[str]:
        made = kind(Liar(), num_workers=workers)
        len(made)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(made)
        return [str(each.message) for each in caught if "Length of" in str(each.message)]

    ours = heard(DataLoader)
    assert ours
    assert ours == heard(torch.utils.data.DataLoader)


def test_no_warning_when_nobody_asked_for_the_length() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(Liar()))) == 4


def test_too_many_workers_get_torchs_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1)

    def heard(kind: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(iter(kind(Samples(), num_workers=2)))
        return [str(each.message) for each in caught if "worker processes" in str(each.message)]

    ours = heard(DataLoader)
    assert ours
    assert ours == heard(torch.utils.data.DataLoader)[:1], "torch says it again at every iter()"


def test_warnings_point_at_the_users_line() -> None:
    made = DataLoader(Liar())
    len(made)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(made)
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_can_be_copied_and_pickled(clone: Callable[[Any], Any], workers: int) -> None:
    made = DataLoader(Samples(length=3), num_workers=workers)
    list(made)
    assert values(clone(made)) == [[0], [1], [2]]


def test_an_iterator_cannot_be_pickled() -> None:
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iter(DataLoader(Samples())))


def test_len_of_an_iterator() -> None:
    assert len(iter(DataLoader(Samples(), batch_size=3))) == 4


def test_a_loader_can_be_made_again_from_its_attributes() -> None:
    """As Lightning does: each argument is read from the attribute of the same name."""
    given = {"num_workers": 2, "name": "train", "monitor": False, "publish_interval": 0.5, "max_retries": 7}
    first = DataLoader(Samples(), **given)
    names = set(inspect.signature(DataLoader.__init__).parameters) - {"self", "shuffle", "sampler", "batch_sampler"}
    again = DataLoader(**{name: getattr(first, name) for name in names})
    assert {name: getattr(again, name) for name in given} == given
    assert first.prefetch_factor == again.prefetch_factor == 2, "as torch says"
    assert again._penstock.given_prefetch_factor() is None, "nobody gave it"
    assert DataLoader(Samples(), num_workers=2, prefetch_factor=2)._penstock.given_prefetch_factor() == 2
