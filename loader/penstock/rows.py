"""Tensors in memory: the samples of a TensorDataset, gathered by index into a batch at once.

One by one, a sample of two tensors costs Python some microseconds, a hundred times what it costs to copy it. What is
gathered is what torch's `default_collate` makes of the samples, bit by bit. Whatever might make a difference (a type of
the user's own, an index that is not a plain number or out of range, a mode that changes what torch's functions
return) goes the ordinary way, errors included: nothing is asked of the dataset before that is decided, so nothing
happens twice.
"""

from __future__ import annotations

import marshal
from contextlib import suppress
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from .collating import leaves_tuples_of_tensors_to_torch
from .ready import Allocate, ReadyBatch
from .taking import by_signal_handler

Keys = list[Any] | np.ndarray[Any, Any]

_ITEM = np.dtype([("code", "S1"), ("value", "<i4")])
_HEAD = 5
"""Bytes before the first item of a list, as `marshal` writes it."""
_WRITES_AS_EXPECTED = marshal.dumps([1, -2], 2) == b"[\2\0\0\0i\1\0\0\0i\xfe\xff\xff\xff"


class TensorRows:
    """The samples of a TensorDataset, or of a Subset of one, or of a Subset of that."""

    def __init__(self, table: TensorDataset, subsets: list[Subset[Any]]) -> None:
        self._table = table
        self._subsets = subsets

    @classmethod
    def of(cls, dataset: Any) -> TensorRows | None:
        """None: the dataset's samples are not just rows of tensors."""
        subsets = []
        while isinstance(dataset, Subset) and getattr(dataset.__getitems__, "__func__", None) is Subset.__getitems__:
            subsets.append(dataset)
            dataset = dataset.dataset
        kind = type(dataset)
        if (
            isinstance(dataset, TensorDataset)
            and kind.__getitem__ is _GET_ITEM
            and _GET_ATTRIBUTE(kind) is object.__getattribute__
            and not hasattr(kind, "tensors")
            and not getattr(dataset, "__getitems__", None)
        ):
            return cls(dataset, subsets)
        return None

    def gather(self, keys: Any, allocate: Allocate) -> ReadyBatch | None:
        """The batch of these samples, in memory that `allocate` gives; None: it must be made in the ordinary way."""
        if type(keys) is not list or not keys or not leaves_tuples_of_tensors_to_torch():
            return None
        tensors = self._table.tensors
        if type(tensors) is not tuple or not all(map(_is_gatherable, tensors)):
            return None
        try:
            picked: Keys = keys
            for subset in self._subsets:
                picked = _picked(subset.indices, picked)
            rows = torch.from_numpy(_numbers(picked))
            return ReadyBatch([_gathered(tensor, rows, allocate) for tensor in tensors], len(keys))
        except (IndexError, RuntimeError, TypeError, OverflowError) as error:
            if by_signal_handler(error):
                raise
            return None


_GET_ITEM = TensorDataset.__getitem__
_GET_ATTRIBUTE: Any = attrgetter("__getattribute__")
_HAVE_NAMES = hasattr(torch.Tensor, "has_names")
"""Dimensions of tensors may have names, before torch 2.13."""


def _numbers(keys: Keys) -> np.ndarray[Any, Any]:
    """The keys as an array. Raises TypeError unless all are plain integers: True is none, since it means a mask.

    `marshal` writes a list's items one after the other, each with a code for its type before it, and plain integers of
    32 bits in four bytes: where the first item has that code the second begins five bytes further on, and so forth.
    """
    if isinstance(keys, np.ndarray):
        return keys
    if _WRITES_AS_EXPECTED:
        with suppress(ValueError):  # something that cannot be marshalled
            written = marshal.dumps(keys, 2)
            if len(written) == _HEAD + _ITEM.itemsize * len(keys):
                items = np.frombuffer(written, _ITEM, offset=_HEAD)
                if written[_HEAD :: _ITEM.itemsize].count(b"i") == len(keys):
                    return items["value"].astype(np.int64)
    if list(map(type, keys)).count(int) != len(keys):
        raise TypeError("not all keys are plain integers")
    return np.array(keys, dtype=np.int64)


def _picked(indices: Any, keys: Keys) -> Keys:
    """What a subset's `indices` have in the places `keys`. Raises TypeError if they are of an unusual type."""
    if type(indices) in (list, tuple, range):
        return [indices[key] for key in (keys.tolist() if isinstance(keys, np.ndarray) else keys)]
    if type(indices) is torch.Tensor and indices.is_cpu:
        indices = indices.numpy()
    if type(indices) is np.ndarray and indices.ndim == 1 and indices.dtype == np.int64:
        picked: Keys = indices[_numbers(keys)]
        return picked
    raise TypeError(f"a subset's indices are in a {type(indices).__name__}")


def _is_gatherable(tensor: Any) -> bool:
    """May its rows be copied, without any difference to torch's stacking of them?

    The strides of samples with four or five dimensions may be kept in stacking: such tensors have to be contiguous.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.ndim > 0
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not (tensor.is_nested or tensor.is_inference())
        and (tensor.ndim < 5 or tensor.is_contiguous())
        and not (_HAVE_NAMES and tensor.has_names())  # type: ignore[attr-defined]
    )


def _gathered(tensor: torch.Tensor, rows: torch.Tensor, allocate: Allocate) -> torch.Tensor:
    """Raises IndexError for a row below 0, too, which may be meant: that is seen to in the ordinary way."""
    out = allocate((len(rows), *tensor.shape[1:]), tensor.dtype)
    if out is None:
        return tensor.index_select(0, rows)
    return torch.index_select(tensor, 0, rows, out=out)
