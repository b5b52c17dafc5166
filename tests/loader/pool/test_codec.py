"""Batches survive the way to training unchanged, whatever they are made of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.pool.crews.codec import INLINE, Encoder, decode
from penstock.pool.crews.slots import SlotStore

from tests.loader.support import Pair, assert_same


class Way:
    """A worker's encoder and what training does with its messages, in one process."""

    def __init__(self) -> None:
        self.store = SlotStore()
        self.encoder = Encoder(self.store)

    def send(self, batch: Any) -> Any:
        structure, buffers, inline, number, _ = self.encoder.encode(batch)
        contents: Any = bytearray(inline)
        if number >= 0:
            contents = bytearray(memoryview(self.store._slots[number].buffer).cast("B"))
            self.store.release([number])
        self.store.announced()
        return decode(structure, buffers, contents)


@pytest.fixture(params=["cold", "warm"])
def way(request: pytest.FixtureRequest) -> Way:
    """Warm: a slot of some size is at hand, so that collation may already have been into it."""
    made = Way()
    if request.param == "warm":
        made.send(torch.zeros(100_000))
        made.encoder.prepare()
    return made


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [7, 20_000])
def test_dtypes(way: Way, dtype: torch.dtype, size: int) -> None:
    tensor = torch.arange(size).remainder(2).to(dtype)
    received = way.send([tensor])[0]
    assert received.dtype == dtype
    assert torch.equal(received.view(torch.uint8), tensor.view(torch.uint8))


LAYOUTS: dict[str, Callable[[int], Any]] = {
    "scalar": lambda n: torch.tensor(float(n)),
    "empty": lambda _: torch.empty(0, 3),
    "empty strided": lambda _: torch.empty(3, 0).t(),
    "transposed": lambda n: torch.arange(2.0 * n).view(2, n).t(),
    "channels last": lambda n: torch.randn(2, 3, n, 4).to(memory_format=torch.channels_last),
    "slice with gaps": lambda n: torch.arange(2.0 * n)[::2],
    "rows with gaps": lambda n: torch.arange(4.0 * n).view(n, 4)[:, 1:3],
    "small part of much": lambda n: torch.arange(50.0 * n)[: n // 2 : 3],
    "expanded": lambda n: torch.arange(3.0).view(3, 1).expand(3, n),
    "expanded to nothing": lambda _: torch.zeros(1).expand(0),
    "offset": lambda n: torch.arange(2.0 * n)[n:],
    "negative": lambda n: torch.view_as_complex(torch.randn(n, 2)).conj().imag,
    "conjugate": lambda n: torch.view_as_complex(torch.randn(n, 2)).conj(),
    "leaf with gradient": lambda n: torch.randn(n, requires_grad=True),
    "transposed leaf": lambda n: torch.randn(2, n).t().detach().requires_grad_(),
    "parameter": lambda n: torch.nn.Parameter(torch.randn(n)),
    "frozen parameter": lambda n: torch.nn.Parameter(torch.randn(n), requires_grad=False),
    "sparse": lambda n: torch.eye(n % 50).to_sparse(),
    "sparse rows": lambda n: torch.eye(n % 50).to_sparse_csr(),
    "quantised": lambda n: torch.quantize_per_tensor(torch.rand(n), 0.1, 3, torch.quint8),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [9, 20_011])
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*quantize", "ignore:.*deprecated")
def test_layouts(way: Way, layout: str, size: int) -> None:
    tensor = LAYOUTS[layout](size)
    received = way.send({"x": tensor, "y": 1})["x"]
    assert type(received) is type(tensor)
    assert received.shape == tensor.shape
    assert received.dtype == tensor.dtype
    assert received.layout == tensor.layout
    assert received.requires_grad == tensor.requires_grad
    assert received.is_leaf
    if tensor.layout is torch.strided:
        assert torch.equal(received.detach(), tensor.detach())
        if layout in ("transposed", "channels last", "transposed leaf"):
            assert received.stride() == tensor.stride()
    else:
        assert torch.equal(received.to_dense(), tensor.to_dense())


class Marked(torch.Tensor):
    """A subclass with an attribute of its own."""

    note: str


def test_subclasses_keep_type_and_attributes(way: Way) -> None:
    tensor = torch.arange(20_000.0).as_subclass(Marked)
    tensor.note = "kept"
    received = way.send((tensor,))[0]
    assert type(received) is Marked
    assert received.note == "kept"
    assert torch.equal(received.as_subclass(torch.Tensor), tensor.as_subclass(torch.Tensor))


def test_a_tensor_in_a_graph_is_refused_as_by_torch(way: Way) -> None:
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        way.send(torch.randn(3, requires_grad=True) * 2)
    assert torch.equal(way.send(torch.ones(3)), torch.ones(3)), "the encoder is usable after a refusal"


def test_the_same_tensor_twice_is_one_tensor(way: Way) -> None:
    tensor = torch.arange(20_000)
    first, second = way.send([tensor, tensor])
    assert first is second


@pytest.mark.parametrize("size", [10, 20_000])
def test_two_views_of_one_memory_have_the_right_values(way: Way, size: int) -> None:
    tensor = torch.arange(size)
    whole, part = way.send([tensor, tensor[3:7]])
    assert torch.equal(whole, tensor)
    assert torch.equal(part, tensor[3:7])


def test_storages(way: Way) -> None:
    storage = torch.arange(20_000, dtype=torch.uint8).untyped_storage()
    assert bytes(way.send([storage])[0]) == bytes(storage)


@pytest.mark.parametrize("size", [4, 200])
def test_arrays(way: Way, size: int) -> None:
    plain = np.arange(size * size, dtype=np.float64).reshape(size, size)
    frozen = plain.copy()
    frozen.flags.writeable = False
    arrays = [
        plain,
        np.asfortranarray(plain),
        frozen,
        plain[::2, ::3],
        np.array(["a", None], dtype=object),
        np.float32(3),
    ]
    received = way.send(arrays)
    assert_same(received, arrays)
    assert received[1].flags.f_contiguous
    assert received[0].flags.writeable
    received[0][:] = 0
    assert plain.sum() > 0


def test_what_arrives_can_be_written_to(way: Way) -> None:
    for tensor in (torch.ones(5), torch.ones(20_000)):
        received = way.send([tensor])[0]
        received.add_(1)
        assert (received == 2).all()
        assert (tensor == 1).all()


def test_memory_given_out_for_collation_is_what_arrives() -> None:
    way = Way()
    way.send(torch.zeros(50_000))
    assert way.encoder.prepare()
    made = way.encoder.allocate((100, 300), torch.float32)
    assert made is not None
    made.copy_(torch.arange(30_000.0).view(100, 300))
    other = torch.full((30_000,), 7.0)
    received = way.send({"in the slot": made, "part": made[10:20], "turned": made.t(), "beside it": other})
    expected = torch.arange(30_000.0).view(100, 300)
    assert_same(
        received, {"in the slot": expected, "part": expected[10:20], "turned": expected.t(), "beside it": other}
    )


def test_the_first_batch_is_made_in_its_slot_and_so_is_one_for_which_no_slot_is_free() -> None:
    way = Way()
    assert way.encoder.allocate((50_000,), torch.float32) is None, "memory of a batch for what a sample is made of"
    kept = []
    for number in range(3):
        assert way.encoder.prepare() is (number == 0), "nothing is known of the size, or no slot is free"
        way.encoder.prepare(make=True)
        made = way.encoder.allocate((50_000,), torch.float32)
        beside = way.encoder.allocate((500,), torch.float32)
        assert made is not None and beside is not None
        made.fill_(number), beside.fill_(-number)
        encoded = way.encoder.encode([made, beside])
        assert encoded.slot == number
        assert [made.data_ptr(), beside.data_ptr()] == [
            way.store._slots[number].address + offset for offset, _ in encoded.buffers
        ], "copied"
        kept.append(encoded)
    for number, encoded in enumerate(kept):
        large, small = decode(encoded.structure, encoded.buffers, way.store._slots[number].buffer)
        assert (large == number).all() and (small == -number).all()
    way.store.announced()


def test_a_slot_that_is_not_needed_is_free_again() -> None:
    way = Way()
    way.send(torch.zeros(50_000))
    for _ in range(3):
        assert way.encoder.prepare()
        assert way.encoder.allocate((10,), torch.int64) is not None
        way.encoder.abandon()
    assert way.encoder.prepare()


leaves = st.one_of(
    st.integers(), st.text(max_size=5), st.none(), st.binary(max_size=5), st.booleans(),
    st.builds(
        lambda shape, dtype: torch.ones(shape, dtype=dtype),
        st.lists(st.sampled_from([0, 1, 3, 2000]), max_size=2),
        st.sampled_from([torch.float32, torch.int64, torch.bool]),
    ),
    st.builds(lambda n: np.arange(n, dtype=np.int16), st.sampled_from([0, 3, 20_000])),
)  # fmt: skip
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3), st.booleans()), inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(batches, min_size=1, max_size=4))
def test_any_batches_one_after_the_other(several: list[Any]) -> None:
    """One encoder, as in a worker: what it remembers of one batch must not show in the next."""
    way = Way()
    for batch in several:
        way.encoder.prepare()
        assert_same(way.send(batch), batch)


def test_small_batches_travel_in_the_message_and_large_ones_in_slots() -> None:
    way = Way()
    small, large = (way.encoder.encode(torch.zeros(n, dtype=torch.uint8)) for n in (INLINE, INLINE + 1))
    assert (small.slot, len(small.inline)) == (-1, INLINE)
    assert (large.slot, large.inline) == (0, b"")
