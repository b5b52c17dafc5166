"""One epoch of a loader with persistent workers, as whoever iterates over it holds it.

The loader keeps the iterator itself for all epochs, so that only this tells when an epoch is left early.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn

from torch.utils.data.dataloader import _BaseDataLoaderIter

from .base import EpochIterator


class PersistentEpoch(_BaseDataLoaderIter):
    """One epoch, as a `for` loop holds it; everything else is the iterator's."""

    def __init__(self, iterator: EpochIterator) -> None:
        self._iterator = iterator
        self._opened = iterator.opened

    __next__ = property(attrgetter("_iterator.__next__"))
    """The iterator's own, without a frame of Python's around it in which a signal handler could raise; see `taking`."""

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)  # a copy that is being made has none yet
        return getattr(self._iterator, name)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and "_opened" in self.__dict__ and self._iterator.opened == self._opened:
            self._iterator.close_epoch("abandoned")
