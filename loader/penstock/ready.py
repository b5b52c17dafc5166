"""Batches that are ready when they are fetched, and memory to make them in.

A dataset whose `__getitems__` can make a whole batch at once returns it as a `ReadyBatch`. Made in memory that
`batch_memory` gave, it lies where training will read it, and nothing is copied on the way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor | None]
"""Gives memory for a tensor of a shape and dtype, contiguous and on the CPU, or declines with None."""


class ReadyBatch:
    """What a dataset's `__getitems__` may return in place of a list of samples: the batch, collated already.

    The default collate function leaves it as it is. Every other one gets a list of the samples, which are taken out of
    the batch then.
    """

    __slots__ = ("_size", "data")

    def __init__(self, data: Any, size: int | None = None) -> None:
        """Args:
            data: The batch as training is to get it: tensors and arrays, or any nesting of them in lists, tuples and
                mappings. The first dimension counts the samples.
            size: How many samples it has. By default the length of the first tensor or array in it.

        Raises:
            ValueError: No size is given, and nothing in the batch tells it.
        """
        self.data = data
        self._size = _length(data) if size is None else size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> Any:
        """One sample."""
        if not -self._size <= place < self._size:
            raise IndexError(f"sample {place} of a batch of {self._size}")
        return _sample(self.data, place)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self._size))


def batch_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a tensor of the batch that is being made, with anything in it.

    In a worker it lies in the slot that carries the batch to training, if there is one at hand; elsewhere it is what
    `torch.empty` gives. For use in `__getitems__` and in a collate_fn: what is kept for a later batch had better be a
    copy, since training may change what it gets.
    """
    allocate = served()
    given = None if allocate is None else allocate(tuple(shape), dtype)
    return torch.empty(tuple(shape), dtype=dtype, device="cpu") if given is None else given


def serve(allocate: Allocate) -> None:
    """In this thread, which makes batches, `batch_memory` gives what `allocate` gives."""
    _here.allocate = allocate


def served() -> Allocate | None:
    """What gives this thread memory for batches; None: it makes none."""
    allocate: Allocate | None = getattr(_here, "allocate", None)
    return allocate


_here = threading.local()


def _length(data: Any) -> int:
    leaf = _first_leaf(data)
    if leaf is None:
        raise ValueError(f"ReadyBatch(data, size): give the size, for nothing in a {type(data).__name__} tells it")
    return int(leaf.shape[0])


def _first_leaf(data: Any) -> Any:
    if isinstance(data, torch.Tensor | np.ndarray):
        return data if data.ndim else None
    parts: Any = ()
    if isinstance(data, Mapping):
        parts = data.values()
    elif isinstance(data, list | tuple):
        parts = data
    return next((leaf for leaf in map(_first_leaf, parts) if leaf is not None), None)


def _sample(data: Any, place: int) -> Any:
    if isinstance(data, Mapping):
        return {key: _sample(part, place) for key, part in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_sample(part, place) for part in data))
    if isinstance(data, list | tuple) and any(_first_leaf(part) is not None for part in data):
        return tuple(_sample(part, place) for part in data)
    return data[place]
