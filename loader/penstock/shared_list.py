"""`SharedList`: a list of Python objects in memory that all processes share.

Python counts references in the objects themselves. A forked worker that only reads a list therefore writes to it, and
the system copies it for the worker, page by page, until each has its own. Here the items are pickles in one piece of
shared memory, which nobody writes to; an item is unpickled when it is asked for.
"""

from __future__ import annotations

import os
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

from .caching.handles import Handle
from .pool.memory import Mapping, create_segment

T = TypeVar("T")

_WORD = 8


class SharedList(Sequence[T]):
    """A list that is made once and only read. Each time an item is asked for it is a new object, equal to the first.

    A slice is a SharedList of the same memory. Forked processes have it as it is; under `spawn` and `forkserver` it is
    found again, without a copy, as long as the process that sent it is there.
    """

    def __init__(self, items: Iterable[T]) -> None:
        """Raises what pickling an item raises."""
        contents, ends = bytearray(), array("q", [0])
        for item in items:
            contents += pickle.dumps(item, 5)
            ends.append(len(contents))
        head = ends.itemsize * len(ends)
        descriptor = create_segment(head + len(contents))
        try:
            self._map(descriptor, head + len(contents), len(ends) - 1, range(len(ends) - 1))
        except BaseException:
            os.close(descriptor)
            raise
        self._bytes[:head] = memoryview(ends).cast("B")
        self._bytes[head:] = contents

    def _map(self, descriptor: int, size: int, items: int, places: range) -> None:
        """`items` are all in the memory; `places` are those of this list."""
        self._memory = _Memory(descriptor, size)
        self._size, self._items, self._places = size, items, places
        self._bytes = self._memory.bytes
        self._ends = self._bytes[: _WORD * (items + 1)].cast("q")

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self._size

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> SharedList[T]: ...

    def __getitem__(self, index: int | slice) -> T | SharedList[T]:
        if isinstance(index, slice):
            part: SharedList[T] = SharedList.__new__(SharedList)
            part.__dict__.update(self.__dict__, _places=self._places[index])
            return part
        try:
            place = self._places[index]
        except IndexError:
            raise IndexError("list index out of range") from None
        head = _WORD * (self._items + 1)
        item: T = pickle.loads(self._bytes[head + self._ends[place] : head + self._ends[place + 1]])
        return item

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | SharedList):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedList({len(self)} items, {self._size} bytes)"

    def __reduce__(self) -> Any:
        return _found, (Handle.of(self._memory.descriptor), self._size, self._items, self._places)


class _Memory:
    """A segment, mapped, and its descriptor, by which others find it."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.bytes = memoryview(Mapping(descriptor, size).export()).cast("B")
        self.descriptor = descriptor

    def __del__(self) -> None:
        descriptor = self.__dict__.get("descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)


def _found(handle: Handle, size: int, items: int, places: range) -> SharedList[Any]:
    descriptor = handle.open()
    if descriptor is None:
        raise RuntimeError(
            f"a SharedList cannot be unpickled here: process {handle.process}, which sent it, is gone or not to be seen"
        )
    made: SharedList[Any] = SharedList.__new__(SharedList)
    made._map(descriptor, size, items, places)
    return made
