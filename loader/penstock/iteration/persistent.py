"""One epoch of a loader with persistent workers, as whoever iterates over it holds it.

The loader keeps the iterator itself for all epochs, so that only this tells when an epoch is left early.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from .base import EpochIterator


class PersistentEpoch(Iterator[Any]):
    def __init__(self, iterator: EpochIterator) -> None:
        self._iterator = iterator
        self._epoch_number = iterator.number

    def __next__(self) -> Any:
        return next(self._iterator)

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)  # a copy that is being made has none yet
        return getattr(self._iterator, name)

    def __getstate__(self) -> NoReturn:
        self._iterator.__getstate__()

    def __del__(self) -> None:
        if "_iterator" in self.__dict__ and self._iterator.number == self._epoch_number:
            self._iterator.close_epoch("abandoned")
