"""Collation: torch's results, types and errors, also when they are made in given memory."""

from __future__ import annotations

import collections
import copy
import warnings
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.collating import collate_into, default_collate, default_convert
from torch.utils import data
from torch.utils.data._utils import collate as torchs

Point = namedtuple("Point", ["x", "y"])


class Memory:
    """Gives memory, or declines, and remembers what it gave."""

    def __init__(self, declines: bool = False) -> None:
        self.declines = declines
        self.given: list[torch.Tensor] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        assert type(shape) is tuple
        if self.declines:
            return None
        self.given.append(torch.empty(shape, dtype=dtype).fill_(1))
        return self.given[-1]

    def holds(self, tensor: torch.Tensor) -> bool:
        return any(each.data_ptr() == tensor.data_ptr() for each in self.given)


def ours(batch: Any) -> list[Any]:
    """The outcomes of our ways to collate."""
    return [
        outcome(default_collate, batch),
        outcome(lambda each: collate_into(each, Memory()), batch),
        outcome(lambda each: collate_into(each, Memory(declines=True)), batch),
    ]


def outcome(collate: Callable[[Any], Any], batch: Any) -> Any:
    """What a way to collate gives for a batch, an error included, in a form that can be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return described(collate(batch))
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
            return type(error), str(error)


def described(value: Any) -> Any:
    """Everything about a value that a user could tell apart."""
    if isinstance(value, torch.Tensor):
        facts = (type(value), value.dtype, value.shape, value.device, value.layout, value.requires_grad)
        if value.device.type == "meta":
            return facts
        strides = () if value.is_contiguous() else value.stride()
        return *facts, strides, repr(value.dequantize().tolist() if value.is_quantized else value.tolist())
    if isinstance(value, np.ndarray):
        return "array", value.dtype, repr(value)
    extra = getattr(value, "__dict__", {}).get("note")
    if isinstance(value, Mapping):
        return type(value), extra, [(key, described(value[key])) for key in value]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return type(value), extra, [described(each) for each in value]
    return type(value), value


NUMPY_SCALARS = [
    np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64, np.longdouble, np.complex64, np.complex128, np.longlong,
]  # fmt: skip

TORCH_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
    torch.bool, torch.complex64, torch.uint16,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(int(np.prod(shape, dtype=int))) + draw(st.integers(0, 9))
    return values.reshape(shape).to(dtype)


@st.composite
def columns(draw: st.DrawFn, size: int, depth: int) -> list[Any]:
    """One value for each of `size` samples, mostly alike, as a dataset gives them, and sometimes not."""
    kinds = ["int", "bool", "float", "mixed", "str", "bytes", "scalar", "tensor", "array", "odd"]
    kind = draw(st.sampled_from(kinds + ["dict", "tuple", "list", "named", "ordered"] * (depth > 0)))
    if kind in ("dict", "tuple", "list", "named", "ordered"):
        parts = [draw(columns(size, depth - 1)) for _ in range(2)]
        rows = list(zip(*parts, strict=True))
        makes: dict[str, Callable[[Any], Any]] = {
            "dict": lambda row: {"a": row[0], "b": row[1]},
            "ordered": lambda row: OrderedDict(a=row[0], b=row[1]),
            "tuple": tuple,
            "list": list,
            "named": lambda row: Point(*row),
        }
        return [makes[kind](row) for row in rows]
    shapes = st.sampled_from([(), (1,), (4,), (2, 3), (0, 2), (9, 5, 4)])
    shape = draw(shapes)
    if kind == "tensor":
        dtype = draw(st.sampled_from(TORCH_DTYPES))
        return [draw(tensors(shape, dtype)) for _ in range(size)]
    if kind == "array":
        code = draw(st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "?", "u2", "c8", ">i4", "U3", "O"]))
        return [np.full(shape, draw(st.integers(0, 9))).astype(code) for _ in range(size)]
    values: dict[str, st.SearchStrategy[Any]] = {
        "int": st.integers(-(2**63), 2**63 - 1),
        "bool": st.booleans(),
        "float": st.floats(),
        "mixed": st.one_of(st.booleans(), st.integers(-9, 2**64), st.floats(), st.just(np.float32(1.5))),
        "str": st.text(max_size=3),
        "bytes": st.binary(max_size=3),
        "scalar": st.sampled_from(NUMPY_SCALARS).flatmap(lambda kind: st.just(kind(1))),
        "odd": st.sampled_from([None, {1}, np.str_("s"), torch.ones(2), np.ones(3), [1], (2,), 1j, {"a": 1}]),
    }
    if kind == "scalar" and draw(st.booleans()):
        make = draw(st.sampled_from(NUMPY_SCALARS))
        return [make(draw(st.integers(0, 9))) for _ in range(size)]
    return [draw(values[kind]) for _ in range(size)]


@given(st.integers(1, 6).flatmap(lambda size: columns(size, 2)))
@settings(deadline=None)
def test_results_and_errors_are_torchs(batch: list[Any]) -> None:
    theirs = outcome(data.default_collate, batch)
    assert ours(batch) == [theirs] * 3


@given(columns(3, 2))
@settings(deadline=None)
def test_conversion_is_torchs(sample: list[Any]) -> None:
    theirs = outcome(data.default_convert, copy.deepcopy(sample))
    assert outcome(default_convert, sample) == theirs


class Colour(IntEnum):
    RED = 1


class Noted(dict[str, Any]):
    """A mapping with something beside its keys."""

    def __init__(self, *args: Any, note: str) -> None:
        super().__init__(*args)
        self.note = note


class Frozen(Mapping[str, Any]):
    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_by_name = values

    def __getitem__(self, key: str) -> Any:
        return self.values_by_name[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


class Stubborn(Frozen):
    """Cannot be made from a mapping."""

    def __init__(self) -> None:
        super().__init__({"a": 1, "b": [2, 3]})


class Pair(Sequence[Any]):
    def __init__(self, values: Sequence[Any]) -> None:
        self.pair = values

    def __getitem__(self, place: Any) -> Any:
        return self.pair[place]

    def __len__(self) -> int:
        return len(self.pair)


class Marked(torch.Tensor):
    """A tensor type of the user's."""


def marked(values: Any) -> torch.Tensor:
    return torch.as_tensor(values).as_subclass(Marked)


def permuted(*more: int) -> torch.Tensor:
    """An image or, with one dimension more, a clip whose channels come before the pixels only by its strides."""
    return torch.rand(*more, 16, 16, 3).permute(*range(len(more)), -1, -3, -2)


BIG = 600
"""Values that make a sample too large for the way of small ones."""

UNUSUAL: list[list[Any]] = [
    [Colour.RED, Colour.RED],
    [True, 2],
    [1, True],
    [1.5, 2],
    [1, 2.5],
    [2**63, 1],
    [1, 2**70],
    [np.float64(1), 2.0],
    [np.float32(1), np.float64(2)],
    [np.int64(1), 2],
    [np.uint64(1), np.uint64(2)],
    [1, torch.tensor(2)],
    [np.datetime64("2020-01-01"), np.datetime64("2020-01-02")],
    [np.array(["a"]), np.array(["b"])],
    [np.array([None]), np.array([None])],
    [np.array(1.5), np.array(2.5)],
    [np.zeros(3), np.zeros(4)],
    [np.zeros((3, 2)), np.zeros((2, 3))],
    [np.zeros(2, "f4"), np.zeros(2, "f8")],
    [np.zeros(2), [1.0, 2.0]],
    [np.zeros(2), torch.zeros(2)],
    [np.asfortranarray(np.arange(6.0).reshape(2, 3)) for _ in range(2)],
    [np.arange(6.0)[::2] for _ in range(2)],
    [np.zeros(2, dtype=[("a", "f4")]) for _ in range(2)],
    [np.zeros(BIG), np.zeros(BIG, "f4")],
    [torch.zeros(3), torch.zeros(4)],
    [torch.zeros(BIG), torch.zeros(BIG + 1)],
    [torch.zeros(3), 1],
    [torch.zeros(BIG), 1],
    [torch.zeros(3), torch.zeros(3, dtype=torch.float64)],
    [torch.zeros(BIG), torch.zeros(BIG, dtype=torch.float64)],
    [torch.zeros(BIG, dtype=torch.int32), torch.zeros(BIG, dtype=torch.int64)],
    [torch.zeros(BIG, requires_grad=True), torch.zeros(BIG)],
    [torch.zeros(BIG), torch.zeros(BIG, requires_grad=True)],
    [torch.zeros(2, requires_grad=True), torch.zeros(2)],
    [torch.nn.Parameter(torch.zeros(BIG), requires_grad=False), torch.zeros(BIG)],
    [marked([1.0]), marked([2.0])],
    [marked(torch.zeros(BIG)), torch.zeros(BIG)],
    [torch.zeros(BIG), marked(torch.zeros(BIG))],
    [torch.zeros(2, device="meta"), torch.zeros(2, device="meta")],
    [torch.zeros(BIG, device="meta"), torch.zeros(BIG, device="meta")],
    [torch.zeros(BIG), torch.zeros(BIG, device="meta")],
    [torch.eye(3).to_sparse(), torch.eye(3).to_sparse()],
    [permuted(), permuted()],
    [permuted(), permuted().contiguous()],
    [permuted().contiguous(), permuted()],
    [permuted(2), permuted(2)],
    [permuted(2)[:, :, :2, :2].to(memory_format=torch.channels_last)] * 2,
    [permuted(2), permuted(2).contiguous()],
    [permuted(2).contiguous(), permuted(2)],
    [np.zeros(3, ">i4"), np.zeros(3, ">i4")],
    [np.zeros(BIG, ">i4"), np.zeros(BIG, ">i4")],
    [torch.rand(BIG, dtype=torch.complex64).conj(), torch.rand(BIG, dtype=torch.complex64)],
    [torch.zeros(BIG, 1)[:, :0], torch.zeros(BIG, 1)[:, :0]],
    [Noted({"a": 1}, note="x"), Noted({"a": 2}, note="y")],
    [defaultdict(list, a=1), defaultdict(list, a=2)],
    [UserDict(a=1), UserDict(a=2)],
    [MappingProxyType({"a": 1}), MappingProxyType({"a": 2})],
    [Frozen({"a": 1}), Frozen({"a": 2})],
    [Stubborn(), Stubborn()],
    [{"a": 1, "b": 2}, {"a": 1}],
    [{"a": 1}, {"a": 1, "b": 2}],
    [Point(1, 2), Point(3, 4)],
    [Point(1, 2), (3,)],
    [(1, 2), (3,)],
    [[1, 2], [3]],
    [(1, 2), (3,), 5],
    [(1, 2), 5],
    [(), ()],
    [Pair([1, 2.0]), Pair([3, 4.0])],
    [range(3), range(3)],
    [deque([1, 2]), deque([3, 4])],
    [UserList([1, 2]), UserList([3, 4])],
    [bytearray(b"ab"), bytearray(b"cd")],
    [None, None],
    [{"a": {1, 2}}, {"a": {3}}],
    [[object()], [object()]],
    [np.str_("a"), np.str_("b")],
    ["a", b"b", 1],
    [],
]


@pytest.mark.parametrize("batch", UNUSUAL)
def test_unusual_batches_give_torchs_results(batch: list[Any]) -> None:
    before = str(batch)
    theirs = outcome(data.default_collate, batch)
    assert [each if each == theirs else (each, theirs) for each in ours(batch)] == [theirs] * 3
    assert str(batch) == before
    assert outcome(default_convert, batch) == outcome(data.default_convert, batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(30).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8),
        lambda: torch.quantize_per_tensor(torch.rand(BIG), 0.1, 0, torch.quint8),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_which_torch_warns_give_its_results(make: Callable[[], torch.Tensor]) -> None:
    batch = [make()] * 2
    assert ours(batch) == [outcome(data.default_collate, batch)] * 3


@pytest.mark.parametrize("shape", [(3,), (BIG,)])
def test_gradients_flow_through_a_batch(shape: tuple[int, ...]) -> None:
    samples = [torch.ones(shape, requires_grad=True) for _ in range(3)]
    memory = Memory()
    collated = collate_into(samples, memory)
    collated.sum().backward()
    assert samples[2].grad is not None
    assert not memory.holds(collated)


def test_usual_batches_are_made_in_the_given_memory() -> None:
    batch = [
        {
            "image": torch.full((3, 20, 20), float(index)),
            "box": torch.tensor([index, 1]),
            "image with channels last": permuted(),
            "array": np.full((2, 3), index, dtype=np.float32),
            "large array": np.full(BIG, index),
            "label": index,
            "weight": index / 2,
            "scalar": np.float32(index),
            "flag": index % 2 == 0,
        }
        for index in range(4)
    ]
    memory = Memory()
    collated = collate_into(batch, memory)
    assert described(collated) == described(data.default_collate(batch))
    assert len(memory.given) == len(collated)
    assert all(memory.holds(value) for value in collated.values())


def test_a_batch_of_many_megabytes_is_the_same() -> None:
    samples = [torch.rand(3, 300, 300) for _ in range(8)]
    for batch in (samples, [sample.numpy() for sample in samples]):
        collated = default_collate(batch)
        assert torch.equal(collated, torch.stack(samples))
        assert collated.is_contiguous()
        assert collated.data_ptr() % 64 == 0


def test_what_is_collated_does_not_share_memory_with_the_samples() -> None:
    samples = [np.zeros(3), np.zeros(3)]
    default_collate(samples).fill_(7)
    assert all(sample.sum() == 0 for sample in samples)


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


class Derived(Custom):
    pass


def collate_custom(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return "custom", torchs.collate([each.value for each in batch], collate_fn_map=collate_fn_map)


def test_types_that_users_register_with_torch_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torchs.default_collate_fn_map, Custom, collate_custom)
    batch = [{"a": Custom(1), "b": Derived(2)}, {"a": Custom(3), "b": Derived(4)}]
    assert ours(batch) == [outcome(data.default_collate, batch)] * 3


@pytest.mark.parametrize("batch", [[torch.ones(2)] * 2, [np.ones(2)] * 2, [np.ones(BIG)] * 2, [marked([1.0])] * 2])
def test_users_can_replace_how_torch_collates_tensors(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_sum(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001
        return sum(batch)

    monkeypatch.setitem(torchs.default_collate_fn_map, torch.Tensor, as_sum)
    assert ours(batch) == [outcome(data.default_collate, batch)] * 3
    assert default_collate(batch).ndim == 1


def test_the_default_device_is_honoured() -> None:
    batch = [{"label": 1, "weight": 1.5, "array": np.zeros(2), "scalar": np.float32(1)}] * 2
    with torch.device("meta"):
        theirs = outcome(data.default_collate, batch)
        assert ours(batch) == [theirs] * 3
        assert default_collate(batch)["label"].device.type == "meta"


def test_a_batch_of_strings_is_returned_as_it_came() -> None:
    batch = collections.UserList(["a", "b"])
    assert default_collate(batch) is batch
