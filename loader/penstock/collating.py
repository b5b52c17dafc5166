"""Batches from samples: torch's `default_collate` and `default_convert`, and collation into given memory.

Results, types and errors are torch's, and so is the table of collate functions: what users have put into
torch's `default_collate_fn_map` is honoured. Only the work behind torch's own entries is done here:

- numbers and arrays become a batch in one call of NumPy, when all of them have one type;
- a batch that is large is stacked into memory that is already there, or that the kernel gives in huge pages.

A shortcut is taken only where its result cannot differ from torch's; everything else goes torch's way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torchs

from .ready import Allocate, ReadyBatch

Column = list[Any] | tuple[Any, ...]
"""One value from each sample of a batch."""

_UNSTACKABLE = frozenset("SaUO")
"""Characters that mark arrays of strings or objects in `dtype.str`."""

_SPARSE = frozenset((torch.sparse_coo, torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc))

_SMALL = 512
"""Bytes of a sample below which to stack and then to copy is cheaper than to check that all are alike."""

_LARGE = 4 << 20
"""Bytes from which a batch of arrays is made in memory of torch's, which is aligned better than NumPy's."""

_HUGE = 32 << 20
"""Bytes from which a batch is worth huge pages: smaller ones get memory again that was used before."""

_TORCH_DTYPES: dict[type, torch.dtype] = {
    int: torch.int64,
    float: torch.float64,
    bool: torch.bool,
    np.bool_: torch.bool,
    np.uint8: torch.uint8,
    np.int8: torch.int8,
    np.int16: torch.int16,
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.complex64: torch.complex64,
    np.complex128: torch.complex128,
}
"""The types of numbers and of array elements that NumPy and torch turn into the same tensors."""

_ALIGNMENT = 64
"""Bytes to which torch aligns what it allocates itself."""

_dtype = attrgetter("dtype")
_shape = attrgetter("shape")


def default_collate(batch: Any) -> Any:
    """Collate a batch as `torch.utils.data.default_collate` does."""
    return batch.data if type(batch) is ReadyBatch else _collate(batch, None)


def collate_into(batch: Any, allocate: Allocate) -> Any:
    """Collate a batch as `default_collate` does, with tensors made in memory that `allocate` gives.

    A tensor that is not plain, contiguous and on the CPU is left where torch puts it. What `allocate` gave
    may, rarely, go unused: when samples turn out only in stacking not to be alike.
    """
    return batch.data if type(batch) is ReadyBatch else _collate(batch, allocate)


def leaves_tuples_of_tensors_to_torch() -> bool:
    """Is what `default_collate` makes of tuples of tensors what torch alone would make of them now?"""
    table = torchs.default_collate_fn_map
    return (
        table.get(torch.Tensor) in _SHORTCUTS
        and _function_for_base((), table) is None
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
        and not torch.is_inference_mode_enabled()
    )


def serve_torch(find: Callable[[], Allocate | None]) -> None:
    """In this process, let torch's own `default_collate` too make tensors in memory that `find` leads to.

    A user's collate_fn may call it. In a worker it would make a file in /dev/shm for every tensor. Where `find` returns
    None, whoever calls is no worker of ours, and torch does what it would.
    """
    global _find
    _find = find
    if torchs.default_collate_fn_map.get(torch.Tensor) is torchs.collate_tensor_fn:
        torchs.default_collate_fn_map[torch.Tensor] = _collate_for_torch


_find: Callable[[], Allocate | None] = lambda: None  # noqa: E731


def _collate_for_torch(batch: Any, *, collate_fn_map: Any = None) -> Any:
    allocate = _find()
    if allocate is None:
        return torchs.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return _collate_tensors(batch, allocate)


def default_convert(data: Any) -> Any:
    """Turn the arrays in one sample into tensors, as `torch.utils.data.default_convert` does."""
    kind = type(data)
    if isinstance(data, torch.Tensor):
        return data
    if kind.__module__ == "numpy" and kind.__name__ not in ("str_", "string_"):
        if kind.__name__ == "ndarray" and not _UNSTACKABLE.isdisjoint(data.dtype.str):
            return data
        return torch.as_tensor(data)
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: default_convert(data[key]) for key in data})
    if isinstance(data, tuple):
        converted = [default_convert(each) for each in data]
        return kind(*converted) if hasattr(data, "_fields") else converted
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like_sequence(data, [default_convert(each) for each in data])
    return data


def _collate(batch: Any, allocate: Allocate | None) -> Any:
    sample = batch[0]
    kind = type(sample)
    table = torchs.default_collate_fn_map
    function = table.get(kind) or _function_for_base(sample, table)
    if function is not None:
        shortcut = _SHORTCUTS.get(function)
        # A mode such as torch.set_default_device changes what torch's functions return.
        if shortcut is None or torch._C._len_torch_function_stack():
            return function(batch, collate_fn_map=table)
        return shortcut(batch, allocate)
    is_row = kind is tuple or kind is list  # to ask that first is cheaper than to ask an abstract class
    if kind is dict or (not is_row and isinstance(sample, Mapping)):
        columns = {key: _collate([each[key] for each in batch], allocate) for key in sample}
        return _like_mapping(sample, columns)
    if not is_row and isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return kind(*(_collate(column, allocate) for column in zip(*batch, strict=False)))
    if is_row or isinstance(sample, Sequence):
        size = len(sample)
        if not all(map(size.__eq__, map(len, batch))):
            raise RuntimeError("each element in list of batch should be of equal size")
        rows = [_collate(column, allocate) for column in zip(*batch, strict=False)]
        return rows if isinstance(sample, tuple) else _like_sequence(sample, rows)
    raise TypeError(torchs.default_collate_err_msg_format.format(kind))


def _function_for_base(sample: object, table: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any] | None:
    if not isinstance(sample, tuple(table)):
        return None
    return next(function for kind, function in table.items() if isinstance(sample, kind))


def _like_mapping(sample: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """`values` in a mapping of the sample's type, with its other attributes, if that type allows."""
    if type(sample) is dict:
        return values
    try:
        if isinstance(sample, MutableMapping):
            clone = copy.copy(sample)
            clone.update(values)
            return clone
        return type(sample)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _like_sequence(sample: Sequence[Any], values: list[Any]) -> Any:
    """`values` in a sequence of the sample's type, with its other attributes, if that type allows."""
    if type(sample) is list:
        return values
    try:
        if isinstance(sample, MutableSequence):
            clone = copy.copy(sample)
            for place, value in enumerate(values):
                clone[place] = value
            return clone
        return type(sample)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _collate_tensors(batch: Column, allocate: Allocate | None) -> torch.Tensor:
    sample = batch[0]
    if sample.is_nested or sample.layout in _SPARSE:
        refused: torch.Tensor = torchs.collate_tensor_fn(batch)
        return refused
    size = sample.nbytes
    if size < _SMALL:
        stacked = torch.stack(batch, 0)
        return stacked if allocate is None else _moved(stacked, allocate)
    if allocate is not None:
        return _stacked_into(batch, allocate)
    if size * len(batch) >= _HUGE:
        return _stacked_into(batch, in_huge_pages)
    return torch.stack(batch, 0)


def _stacked_into(batch: Column, allocate: Allocate) -> torch.Tensor:
    sample = batch[0]
    # Torch keeps the strides only of samples with channels last, which have four or five dimensions. What else
    # may differ (shape, device, layout, wanting a gradient) makes it refuse to stack into given memory.
    if (
        _is_plain(sample)
        and (sample.ndim < 4 or sample.is_contiguous())
        and _all_of(torch.Tensor, batch)
        and list(map(_dtype, batch)).count(sample.dtype) == len(batch)
        and (out := allocate((len(batch), *sample.shape), sample.dtype)) is not None
    ):
        with suppress(RuntimeError):
            return torch.stack(batch, 0, out=out)
    return torch.stack(batch, 0)


def _collate_arrays(batch: Column, allocate: Allocate | None) -> Any:
    sample = batch[0]
    dtype = sample.dtype
    if not _UNSTACKABLE.isdisjoint(dtype.str):
        raise TypeError(torchs.default_collate_err_msg_format.format(dtype))
    if (
        sample.ndim
        and sample.nbytes * len(batch) < _LARGE
        and sample.flags.c_contiguous
        and dtype.isnative
        and dtype.type in _TORCH_DTYPES
        and _all_of(np.ndarray, batch)
        and list(map(_dtype, batch)).count(dtype) == len(batch)
        and list(map(_shape, batch)).count(sample.shape) == len(batch)
        and torchs.default_collate_fn_map.get(torch.Tensor) in _SHORTCUTS
    ):
        shape = (len(batch), *sample.shape)
        out = None if allocate is None else allocate(shape, _TORCH_DTYPES[dtype.type])
        if out is None:
            return torch.from_numpy(np.concatenate(batch).reshape(shape))
        np.concatenate(batch, out=out.numpy().reshape(-1, *sample.shape[1:]))
        return out
    return _collate([torch.as_tensor(each) for each in batch], allocate)


def _collate_floats(batch: Column, allocate: Allocate | None) -> torch.Tensor:
    if _all_of(float, batch):
        return _collate_numbers(batch, float, allocate)
    return _moved(torch.tensor(batch, dtype=torch.float64), allocate)


def _collate_integers(batch: Column, allocate: Allocate | None) -> torch.Tensor:
    kind = type(batch[0])
    if kind in _TORCH_DTYPES and _all_of(kind, batch):
        with suppress(OverflowError):
            return _collate_numbers(batch, kind, allocate)
    return _moved(torch.tensor(batch), allocate)


def _collate_scalars(batch: Column, allocate: Allocate | None) -> torch.Tensor:
    kind = type(batch[0])
    if kind in _TORCH_DTYPES and _all_of(kind, batch):
        return _collate_numbers(batch, kind, allocate)
    return _moved(torch.as_tensor(batch), allocate)


def _collate_numbers(batch: Column, kind: type, allocate: Allocate | None) -> torch.Tensor:
    """A batch of numbers that all have one of the types about which NumPy and torch agree."""
    out = None if allocate is None else allocate((len(batch),), _TORCH_DTYPES[kind])
    if out is None:
        return torch.from_numpy(np.array(batch, dtype=kind))
    out.numpy()[:] = batch
    return out


def _moved(made: torch.Tensor, allocate: Allocate | None) -> torch.Tensor:
    """A tensor that torch has made, in memory that `allocate` gives if it is one that may go there."""
    if allocate is None or made.requires_grad or not (_is_plain(made) and made.is_contiguous()):
        return made
    out = allocate(tuple(made.shape), made.dtype)
    return made if out is None else out.copy_(made)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized


def _all_of(kind: type, batch: Column) -> bool:
    return list(map(type, batch)).count(kind) == len(batch)


def in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """Memory from NumPy, which asks the kernel for huge pages where torch takes a page fault every 4 KB.

    Declines where the batch is too small for that to be of use.
    """
    size = prod(shape) * dtype.itemsize
    if size < _HUGE:
        return None
    memory = torch.from_numpy(np.empty(size + _ALIGNMENT, dtype=np.uint8))
    start = -memory.data_ptr() % _ALIGNMENT
    return memory[start : start + size].view(dtype).view(shape)


_SHORTCUTS: dict[Callable[..., Any], Callable[[Any, Allocate | None], Any]] = {
    torchs.collate_tensor_fn: _collate_tensors,
    _collate_for_torch: _collate_tensors,
    torchs.collate_numpy_array_fn: _collate_arrays,
    torchs.collate_numpy_scalar_fn: _collate_scalars,
    torchs.collate_float_fn: _collate_floats,
    torchs.collate_int_fn: _collate_integers,
}
