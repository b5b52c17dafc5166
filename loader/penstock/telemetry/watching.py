"""`watch`: publish what can be seen of an ordinary torch DataLoader, to look before one switches.

The loader stays the object that it was, of a subclass made on the spot, so that `isinstance`, its attributes and its
batches are as before; only its iterators come in a wrapper that looks at the clock. A copy or a pickle of it is an
ordinary loader again. What is seen, and how well: `torch_source`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import torch

from ..engine import Engine
from .address import AnyAddress, resolve
from .source import check_interval
from .torch_source import TorchSource, length_of_epoch

L = TypeVar("L", bound="torch.utils.data.DataLoader[Any]")

log = logging.getLogger("penstock")


def watch(dataloader: L, name: str = "train", monitor: bool | str | None = None, publish_interval: float = 0.2) -> L:
    """Publish what can be seen of a torch DataLoader; returns the same loader, which yields the same batches.

    `monitor` is as for `loader.DataLoader`. Without anywhere to publish to, the loader is left alone.
    """
    if not isinstance(dataloader, torch.utils.data.DataLoader):
        raise TypeError(f"watch expects a torch DataLoader, but got {dataloader!r}")
    if isinstance(getattr(dataloader, "_penstock", None), Engine):
        raise TypeError("watch is for torch's own DataLoader; this one publishes by itself: give it monitor=")
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a text, but got name={name!r}")
    address = resolve(monitor)
    if address is None or hasattr(dataloader, "_penstock"):
        return dataloader
    check_interval(publish_interval)
    source = TorchSource(dataloader, name)
    dataloader.__class__ = _watched(cast(Any, type(dataloader)))
    dataloader.__dict__["_penstock"] = _Watch(source, address, publish_interval)
    return dataloader


class _Watch:
    """Begins to publish with the first epoch: by then it is known which process trains, and as which rank."""

    def __init__(self, source: TorchSource, address: AnyAddress, interval: float) -> None:
        self._source = source
        self._address = address
        self._interval = interval
        self._owner: int | None = None
        self._publisher: object = None

    def begin(self, loader: Any, iterator: Any) -> Any:
        """The iterator in a wrapper; in a forked copy of the process, as it is."""
        if self._owner is None:
            from .identity import make_identity
            from .publisher import Publisher

            self._owner = os.getpid()
            publisher = Publisher(self._source, self._address, self._interval, identity=make_identity(self._source))
            publisher.start()
            self._publisher = publisher
        if self._owner != os.getpid():
            return iterator
        return WatchedEpoch(self._source, iterator, length_of_epoch(loader))


@functools.cache
def _watched(plain: Any) -> Any:
    """A subclass that watches. One base only: else it would be laid out differently, and no loader could become one."""

    class Watched(plain):  # type: ignore[misc]
        _penstock: _Watch | None = None
        """Still None in a loader that a library makes anew from the class of a watched one."""

        def __iter__(self) -> Any:
            iterator = super().__iter__()
            if self._penstock is None:
                return iterator
            try:
                return self._penstock.begin(self, iterator)
            except Exception:
                log.warning("a torch DataLoader cannot be watched; it works as before", exc_info=True)
                self.__dict__.pop("_penstock")
                return iterator

        def __reduce_ex__(self, _protocol: Any) -> Any:
            state = self.__getstate__()
            if isinstance(state, dict):
                state = {key: value for key, value in state.items() if key != "_penstock"}
            return _new, (plain,), state

    Watched.__name__, Watched.__qualname__ = plain.__name__, plain.__qualname__
    Watched.__module__, Watched.__doc__ = plain.__module__, plain.__doc__
    return Watched


def _new(plain: Any) -> Any:
    return plain.__new__(plain)


class WatchedEpoch:
    """One of the loader's iterators, and a look at the clock before and after each batch."""

    def __init__(self, source: TorchSource, iterator: Iterator[Any], length: int | None) -> None:
        self._source = source
        self.iterator: Any = iterator
        self.length = length
        """Batches, where known."""
        self.batches = 0
        """Batches so far."""
        self.ended = False
        self.number, self.tasks = source.begin(self, iterator)

    def __iter__(self) -> WatchedEpoch:
        return self

    def __next__(self) -> Any:
        source = self._source
        if self.ended:
            return next(self.iterator)
        source.enter(self)
        try:
            batch = next(self.iterator)
        except StopIteration:
            self.ended = True
            source.end(self, "ended")
            raise
        except BaseException as error:
            source.fail(self, f"{type(error).__name__}: {error}")
            raise
        source.leave(self, batch)
        self.batches += 1
        return batch

    def __len__(self) -> int:
        return len(self.iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "iterator":
            raise AttributeError(name)  # a copy that is being made has none yet
        return getattr(self.iterator, name)

    def __del__(self) -> None:
        if "tasks" in self.__dict__ and not self.ended:
            self._source.end(self, "abandoned")
