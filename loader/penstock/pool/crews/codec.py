"""Turn a batch into a small pickle and a run of bytes, and back.

The pickle (protocol 5) holds the structure; the contents of tensors and arrays stay out of it. They lie one after
the other, aligned, in a slot, or, for small batches, in the message itself. In training they become views of that
memory: nothing is copied on the way in.
"""

from __future__ import annotations

import copyreg
import ctypes
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .slots import Slot, SlotStore

INLINE = 1 << 15
"""Batches up to so many bytes travel inside the message: cheaper than a slot's round trip."""

ALIGNMENT = 64

MOST_KNOWN = 1024
"""Structures of plain batches that an encoder remembers."""

_DTYPES: tuple[torch.dtype, ...] = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    torch.complex64, torch.complex128,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


class Encoded(NamedTuple):
    """A batch on its way to training."""

    structure: bytes
    """The pickle."""
    buffers: list[tuple[int, int]]
    """(offset, length) of every out-of-band buffer, in the order in which the pickle refers to them."""
    inline: bytes
    """The contents, if they travel in the message."""
    slot: int
    """The slot that holds the contents; -1: none."""
    nbytes: int
    """Size of the contents."""


class _Source(NamedTuple):
    """One buffer that the pickle refers to, before its place is settled."""

    tensor: torch.Tensor | None
    """The tensor whose memory it is, if it is one of torch's."""
    view: memoryview | None
    """Else the memory."""
    offset: int
    """Where it will be in the slot, bytes."""
    nbytes: int
    """Its length, bytes."""
    placed: bool
    """It is in the slot already."""


class Encoder:
    """A worker's encoder. `allocate` hands out slot memory for collation, `encode` places the rest and pickles."""

    def __init__(self, slots: SlotStore) -> None:
        self._slots = slots
        self._slot: Slot | None = None
        self._end = 0
        self._expected = 0
        self._collating = False
        """The samples are there: what is allocated is for the batch, and not for one of them."""
        self._sources: list[_Source] = []
        self._known: dict[Any, bytes] = {}
        self._file = io.BytesIO()
        self._mark = pickle.PickleBuffer(bytearray())  # writable, or training would get read-only views
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=self._out_of_band)
        self._pickler.dispatch_table = {
            **copyreg.dispatch_table,
            torch.Tensor: self._reduce_tensor,
            torch.UntypedStorage: self._reduce_storage,
            torch.TypedStorage: _reduce_typed_storage,
            np.ndarray: _reduce_array,
        }

    def prepare(self, make: bool = False) -> bool:
        """Get a slot for a batch of the size of the last one; False if there is none at hand and none is to be made."""
        self._collating = True
        if self._slot is None and self._expected > INLINE:
            find = self._slots.acquire if make else self._slots.find
            self._slot = find(self._expected)
            return self._slot is not None
        return True

    def patience(self) -> float:
        """How long to wait for a slot rather than to make one, seconds."""
        return self._slots.patience(self._expected)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return a tensor inside the slot of the batch under way, or None if it should be made elsewhere."""
        slot = self._slot
        if dtype not in _CODES:
            return None
        count = 1
        for length in shape:
            count *= length
        nbytes = count * dtype.itemsize
        if slot is None:
            if not self._collating or nbytes <= INLINE:
                return None
            # The first batch: the rest of it is likely to be smaller.
            slot = self._slot = self._slots.acquire(nbytes, nbytes >> 3)
        offset = self._end
        if count == 0 or offset + nbytes > slot.size:
            return None
        self._end = _aligned(offset + nbytes)
        return torch.frombuffer(slot.buffer, dtype=dtype, count=count, offset=offset).view(shape)

    def encode(self, batch: object) -> Encoded:
        try:
            structure = self._structure(batch)
            nbytes = sum([source.nbytes for source in self._sources])
            self._expected = self._end
            buffers = [(source.offset, source.nbytes) for source in self._sources]
            if self._end <= INLINE:
                return Encoded(structure, buffers, self._inline(), -1, nbytes)
            return Encoded(structure, buffers, b"", self._fill_slot(), nbytes)
        finally:
            self.abandon()

    def _structure(self, batch: Any) -> bytes:
        """Pickle the batch and note its buffers. The pickles of plain batches are made once for every shape."""
        key = _skeleton(batch)
        if key is not None:
            known = self._known.get(key)
            if known is not None:
                for tensor in _tensors(batch):
                    self._place(tensor, tensor.nbytes)
                return known
        self._file.seek(0)
        self._file.truncate()
        self._pickler.clear_memo()
        self._pickler.dump(batch)
        structure = self._file.getvalue()
        if key is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = structure
        return structure

    def abandon(self) -> None:
        """Forget the batch under way and free its slot."""
        if self._slot is not None:
            self._slots.put_back(self._slot)
            self._slot = None
        self._end = 0
        self._collating = False
        self._sources.clear()

    def _inline(self) -> bytes:
        parts: list[bytes | memoryview] = []
        end = 0
        for source in self._sources:
            if source.offset > end:
                parts.append(b"\0" * (source.offset - end))
            parts.append(_contents(source))
            end = source.offset + source.nbytes
        return b"".join(parts)

    def _fill_slot(self) -> int:
        slot = self._slot
        settled = slot is not None and slot.size >= self._end
        if slot is None or not settled:
            slot = self._slots.acquire(self._end)
        for source in self._sources:
            if source.placed and settled:
                continue
            target = memoryview(slot.buffer).cast("B")[source.offset : source.offset + source.nbytes]
            if source.tensor is not None:
                _copy_tensor(source.tensor, target)
            elif source.view is not None:
                target[:] = source.view
        if settled:
            self._slot = None
        return slot.number

    def _place(self, tensor: torch.Tensor, nbytes: int) -> None:
        """Find a place for a tensor's contents; a contiguous one may lie in the slot already. -1: not contiguous."""
        slot = self._slot
        if slot is not None and nbytes > 0:
            offset = tensor.data_ptr() - slot.address
            if 0 <= offset < slot.size:
                self._sources.append(_Source(tensor, None, offset, nbytes, True))
                return
        if nbytes < 0:
            nbytes = tensor.nbytes
        self._sources.append(_Source(tensor, None, self._reserve(nbytes), nbytes, False))

    def _reserve(self, nbytes: int) -> int:
        offset = self._end
        self._end = _aligned(offset + nbytes)
        return offset

    def _out_of_band(self, buffer: pickle.PickleBuffer) -> None:
        if buffer is not self._mark:
            view = buffer.raw()
            self._sources.append(_Source(None, view, self._reserve(view.nbytes), view.nbytes, False))

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        code = _CODES.get(tensor.dtype)
        if code is None or not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
            return _reduce_exotic(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not "
                "support crossing process boundaries. If you just want to transfer the data, call detach() on the "
                "tensor before serializing (e.g., putting it on the queue)."
            )
        if tensor.is_neg() or tensor.is_conj():
            return tensor.__reduce_ex__(5)
        shape: Any = tuple(tensor.shape)
        stride: Any = None
        if not tensor.is_contiguous():
            stride = tensor.stride()
            if not _is_dense(shape, stride):
                return self._reduce_gapped(tensor, code, shape, stride)
        self._place(tensor, tensor.nbytes if stride is None else -1)
        if stride is None and len(shape) == 1:
            shape = None
        if tensor.requires_grad:
            return _tensor, (self._mark, code, shape, stride, True)
        if stride is not None:
            return _tensor, (self._mark, code, shape, stride)
        return _tensor, (self._mark, code, shape)

    def _reduce_gapped(self, tensor: torch.Tensor, code: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        """Neither dense nor contiguous: an expanded tensor, or a slice with gaps.

        The whole storage goes along, as in torch, unless it is much larger than what is seen of it.
        """
        storage = tensor.untyped_storage()
        if storage.nbytes() > 2 * max(tensor.nbytes, 4096):
            return self._reduce_tensor(tensor.detach().contiguous().requires_grad_(tensor.requires_grad))
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._sources.append(_Source(flat, None, self._reserve(flat.nbytes), flat.nbytes, False))
        return _gapped, (self._mark, code, shape, stride, tensor.storage_offset(), tensor.requires_grad)

    def _reduce_storage(self, storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "cpu":
            return storage.__reduce_ex__(5)
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._sources.append(_Source(flat, None, self._reserve(flat.nbytes), flat.nbytes, False))
        return storage_on, (self._mark,)


def decode(structure: bytes, buffers: list[tuple[int, int]], contents: Any) -> Any:
    """Rebuild a batch on `contents`, any writable buffer: tensors and arrays become views of it."""
    if not buffers:
        return pickle.loads(structure)
    view = memoryview(contents).cast("B")
    return pickle.loads(structure, buffers=[view[offset : offset + length] for offset, length in buffers])


def _tensors(batch: Any) -> Any:
    """The tensors of a plain batch, in the order in which a pickle meets them."""
    kind = type(batch)
    if kind is torch.Tensor:
        return (batch,)
    return batch.values() if kind is dict else batch


def _skeleton(batch: Any) -> Any:
    """What a plain batch's pickle depends on; None for a batch that is not just tensors, or a flat list, tuple or
    dict of plain ones, none of them twice."""
    kind = type(batch)
    if kind is torch.Tensor:
        return _plain(batch)
    if kind is dict:
        outline: Any = tuple(batch)
        for key in outline:
            if type(key) is not str:
                return None
    elif kind is list or kind is tuple:
        outline = kind
    else:
        return None
    parts = [outline]
    seen = set()
    for tensor in _tensors(batch):
        plain = _plain(tensor) if type(tensor) is torch.Tensor else None
        if plain is None or id(tensor) in seen:
            return None
        seen.add(id(tensor))
        parts.append(plain)
    return tuple(parts)


def _plain(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size] | None:
    """(dtype, shape) of a tensor that nothing else need be said of."""
    dtype = tensor.dtype
    if (
        dtype in _CODES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_neg()
        and not tensor.is_conj()
    ):
        return dtype, tensor.shape
    return None


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _contents(source: _Source) -> bytes | memoryview:
    if source.view is not None:
        return source.view
    tensor = source.tensor
    if tensor is None or not source.nbytes:
        return b""
    return ctypes.string_at(tensor.data_ptr(), source.nbytes)


def _copy_tensor(tensor: torch.Tensor, target: memoryview) -> None:
    if target.nbytes:
        flat = torch.frombuffer(target, dtype=tensor.dtype)
        if tensor.is_contiguous():
            flat.view(tensor.shape).copy_(tensor.detach())
        else:
            flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Does the tensor cover its memory without gaps or overlaps, as channels-last and transposed ones do?"""
    expected = 1
    for step, length in sorted(zip(stride, shape, strict=True)):
        if length == 0:
            return False
        if length > 1:
            if step != expected:
                return False
            expected *= length
    return True


def _reduce_exotic(tensor: torch.Tensor) -> Any:
    if tensor.is_cpu or tensor.is_meta:
        return tensor.__reduce_ex__(5)
    from torch.multiprocessing.reductions import reduce_tensor

    reduce: Callable[[torch.Tensor], Any] = reduce_tensor
    return reduce(tensor)


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """Arrays arrive writable, and in the byte order in which they come out of torch's queue: this machine's, but for
    contiguous ones where Python pickles with protocol 5 by default (3.14)."""
    dtype = array.dtype
    # A structured type's order is "|", and its fields stay as they are.
    foreign = dtype.byteorder in "<>" and not dtype.isnative and (pickle.DEFAULT_PROTOCOL < 5 or not array.flags.forc)
    if (foreign or not array.flags.writeable) and not dtype.hasobject:
        array = array.astype(dtype.newbyteorder("=") if foreign else dtype, order="A")
    return array.__reduce_ex__(5)


def _reduce_typed_storage(storage: torch.TypedStorage) -> Any:
    return _typed_storage, (storage._untyped_storage, storage.dtype)


def _tensor(
    view: memoryview,
    code: int,
    shape: tuple[int, ...] | None,
    stride: tuple[int, ...] | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    if view.nbytes == 0:
        tensor = torch.empty((0,) if shape is None else shape, dtype=_DTYPES[code])
    else:
        tensor = torch.frombuffer(view, dtype=_DTYPES[code])
        if stride is not None:
            tensor = tensor.as_strided(shape, stride)  # type: ignore[arg-type]
        elif shape is not None:
            tensor = tensor.view(shape)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def _gapped(
    view: memoryview,
    code: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
) -> torch.Tensor:
    dtype = _DTYPES[code]
    if view.nbytes == 0:
        return torch.empty_strided(shape, stride, dtype=dtype, requires_grad=requires_grad)
    count = view.nbytes // dtype.itemsize
    flat = torch.frombuffer(view, dtype=dtype, count=count)
    return flat.as_strided(shape, stride, offset).requires_grad_(requires_grad)


def storage_on(contents: memoryview | bytearray) -> torch.UntypedStorage:
    """A storage that is a view of the contents."""
    if len(contents) == 0:
        return torch.UntypedStorage(0)
    return torch.frombuffer(contents, dtype=torch.uint8).untyped_storage()


def _typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
