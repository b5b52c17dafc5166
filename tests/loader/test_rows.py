"""Tensors in memory are gathered at once, and the batches are torch's, bit by bit; so are the errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from penstock.collating import collate_into
from penstock.fetching import MapFetcher
from penstock.ready import ReadyBatch
from torch.utils import data
from torch.utils.data import Subset, TensorDataset
from torch.utils.data._utils import collate as torchs
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from tests.loader.support import DataLoader, assert_same
from tests.loader.test_collating import TORCH_DTYPES, Memory, described, marked

LENGTH = 7
EXOTIC = [torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.int16, torch.complex128]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor with LENGTH rows, mostly an ordinary one."""
    shape = draw(st.sampled_from([(), (1,), (5,), (2, 3), (0,), (3, 0), (2, 4, 4), (2, 3, 4, 4), (1, 2, 1, 3, 2)]))
    dtype = draw(st.sampled_from(TORCH_DTYPES + EXOTIC))
    count = int(np.prod(shape, dtype=int))
    values = torch.arange(LENGTH * count).reshape(LENGTH, *shape).to(dtype)
    way = draw(st.sampled_from(["plain"] * 6 + ["transposed", "gapped", "expanded", "negative", "conjugate", "last"]))
    if way == "transposed" and len(shape) > 1:
        values = values.transpose(1, -1)
    elif way == "gapped" and shape:
        values = torch.stack([values, values], -1)[..., 1]
    elif way == "expanded":
        values = values[:1].expand(LENGTH, *shape)
    elif way in ("negative", "conjugate") and dtype.is_complex:
        values = values.conj() if way == "conjugate" else torch._neg_view(values)
    elif way == "last" and len(shape) in (3, 4):
        form = torch.channels_last if len(shape) == 3 else torch.channels_last_3d
        values = values.to(memory_format=form)
    if draw(st.integers(0, 15)) == 0 and dtype.is_floating_point:
        values = values.requires_grad_()
    if draw(st.integers(0, 15)) == 0:
        values = marked(values)
    return values


keys = st.one_of(
    *[st.integers(0, LENGTH - 1)] * 12,
    st.integers(-LENGTH - 2, LENGTH + 2),
    st.sampled_from([True, False, np.int64(2), np.uint8(1), torch.tensor(3), 2**40, 2**70, -(2**70), "a", None, 1.0]),
)

batches = st.one_of(st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=9), st.lists(keys, max_size=9))


@st.composite
def subsets(draw: st.DrawFn, dataset: Any) -> Any:
    """A Subset with LENGTH samples."""
    one = draw(st.one_of(st.just(st.integers(0, LENGTH - 1)), st.just(keys)))
    indices: Any = draw(st.lists(one, min_size=LENGTH, max_size=LENGTH))
    if all(type(index) is int and abs(index) < 2**60 for index in indices):
        kinds: list[Callable[[list[int]], Any]] = [
            list, tuple, np.array, torch.tensor,
            lambda numbers: np.array(numbers).clip(0, 99).astype(np.uint8),
            lambda numbers: np.array(numbers).repeat(2)[::2],
            lambda numbers: range(len(numbers) - 1, -1, -1),
        ]  # fmt: skip
        indices = draw(st.sampled_from(kinds))(indices)
    return Subset(dataset, indices)


def outcome(make: Callable[[], Any]) -> Any:
    """What is made, an error included, in a form that can be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            batch = make()
        except Exception as error:
            return type(error), str(error)
        facts = [(each.is_contiguous(), each.is_leaf, each._version, each.storage_offset()) for each in batch]
        return described(batch), facts


def ours(dataset: Any, indices: Any, memory: Memory | None = None) -> Any:
    memory = memory or Memory(declines=True)
    return collate_into(MapFetcher(dataset, True, allocate=memory).fetch(indices), memory)


def torchs_own(dataset: Any, indices: Any) -> Any:
    return _MapDatasetFetcher(dataset, True, data.default_collate, False).fetch(indices)


@given(st.data())
def test_batches_and_errors_are_torchs(given: st.DataObject) -> None:
    dataset: Any = TensorDataset(*given.draw(st.lists(tensors(), min_size=1, max_size=3)))
    depth = given.draw(st.integers(0, 2))
    for _ in range(depth):
        dataset = given.draw(subsets(dataset))
    for indices in given.draw(st.lists(batches, min_size=3, max_size=3)):
        theirs = outcome(partial(torchs_own, dataset, indices))
        found = [outcome(partial(ours, dataset, indices, memory)) for memory in (None, Memory())]
        if isinstance(theirs[1], str) and depth > 1:
            # Which of several bad indices is told depends on the order in which subsets of subsets are asked.
            assert all(isinstance(each[1], str) for each in found)
        else:
            assert found[0] == theirs
            assert found[1][0] == theirs[0]


def table(length: int = 40) -> TensorDataset:
    return TensorDataset(torch.rand(length, 5), torch.arange(length))


def is_gathered(dataset: Any, indices: Any = (3, 1, 2)) -> bool:
    return type(MapFetcher(dataset, True, allocate=Memory(declines=True)).fetch(list(indices))) is ReadyBatch


class Named(TensorDataset):
    """A subclass that leaves the samples to torch."""

    name = "images"


class Doubling(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * tensor[index] for tensor in self.tensors)


class Counting(TensorDataset):
    asked = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "tensors":
            type(self).asked += 1
        return super().__getattribute__(name)


class Whole(TensorDataset):
    def __getitems__(self, indices: list[int]) -> Any:
        return [(index,) for index in indices]


class Reversed(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self.dataset[-1 - self.indices[index]]

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


def whole_numbers(indices: Any) -> Any:
    """Without its type, which torch does not name."""
    return indices


@pytest.mark.parametrize("wrap", [
    lambda each: each,
    lambda each: Named(*each.tensors),
    lambda each: Subset(each, range(10)),
    lambda each: Subset(each, whole_numbers(np.arange(30)[::-1].copy())),
    lambda each: Subset(Subset(each, list(range(20))), whole_numbers(torch.arange(10))),
    lambda each: data.random_split(each, [30, 10])[0],
])  # fmt: skip
def test_gathered(wrap: Any) -> None:
    dataset = wrap(table())
    assert is_gathered(dataset)
    assert_same(ours(dataset, [3, 1, 2]), torchs_own(dataset, [3, 1, 2]))


@pytest.mark.parametrize("wrap", [
    lambda each: Doubling(*each.tensors),
    lambda each: Counting(*each.tensors),
    lambda each: Whole(*each.tensors),
    lambda each: Reversed(each, range(10)),
    lambda each: Subset(Reversed(each, range(10)), range(10)),
    lambda each: data.ConcatDataset([each, each]),
    lambda each: data.StackDataset(each, each),
])  # fmt: skip
def test_a_dataset_with_its_own_way_is_asked_for_samples(wrap: Any) -> None:
    dataset = wrap(table())
    assert not is_gathered(dataset)
    assert_same(ours(dataset, [3, 1, 2]), torchs_own(dataset, [3, 1, 2]))


@contextmanager
def registered(kind: type, function: Any) -> Iterator[None]:
    before = torchs.default_collate_fn_map
    torchs.default_collate_fn_map = {kind: function, **before, **({kind: function} if kind in before else {})}
    try:
        yield
    finally:
        torchs.default_collate_fn_map = before


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made + 1 if function is torch.stack else made


@pytest.mark.parametrize("around", [
    lambda: registered(torch.Tensor, lambda batch, **_: torch.stack(tuple(batch)) * 2),
    lambda: registered(tuple, lambda batch, **_: len(batch)),
    Mode,
    torch.inference_mode,
    lambda: torch.device("meta"),
])  # fmt: skip
def test_what_changes_torchs_collation_changes_ours(around: Any) -> None:
    dataset = table()
    with around():
        found, theirs = ours(dataset, [4, 0]), torchs_own(dataset, [4, 0])
    if isinstance(theirs, list):
        assert [each.is_inference() for each in found] == [each.is_inference() for each in theirs]
        assert [each.device for each in found] == [each.device for each in theirs]
    if not isinstance(theirs, list) or theirs[0].device.type == "cpu":
        assert_same(found, theirs)


def test_with_a_collate_function_or_a_record_of_samples_the_samples_are_asked_for() -> None:
    for fetcher in (MapFetcher(table(), True), MapFetcher(table(), True, True, Memory())):
        assert type(fetcher.fetch([0, 1])) is list


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_torchs(workers: int) -> None:
    """Batches that travel in slots, and the last, shorter one; they may be written to, and are nobody else's."""
    tensors = torch.rand(300, 50, 9), torch.arange(300), torch.rand(300)
    dataset = Subset(TensorDataset(*tensors), range(10, 290))
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    theirs = data.DataLoader(dataset, 64, shuffle=True, generator=generators[0])
    with DataLoader(dataset, 64, shuffle=True, num_workers=workers, generator=generators[1]) as made:
        before = [tensor.clone() for tensor in tensors]
        for _ in range(2):
            for our, their in zip(made, theirs, strict=True):
                assert_same(our, their)
                for tensor in our:
                    tensor.zero_()
        for tensor, kept in zip(tensors, before, strict=True):
            assert torch.equal(tensor, kept)
        stats = made.stats()
        assert (stats.samples, stats.cost.count, stats.cost.max_index) == (560, 280, "")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_index_is_named_as_ever(workers: int) -> None:
    with DataLoader(table(), batch_sampler=[[1, 2], [3, 99]], num_workers=workers) as made:
        batches = iter(made)
        next(batches)
        with pytest.raises(IndexError, match="index 99 is out of bounds" if not workers else "sample index 99"):
            next(batches)
