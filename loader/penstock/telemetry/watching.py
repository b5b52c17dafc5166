"""`watch`: publish what can be seen of anything that can be iterated, to look before one switches.

What is watched stays what it was (`disguise`), and is iterated as often as training does; only a look at the clock is
taken before and after each batch. What is seen, and how well: `watched_source` of anything, `torch_source` of torch's.
"""

from __future__ import annotations

import logging
import os
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import get_worker_info

from ..arguments import text
from .address import AnyAddress, resolve
from .disguise import disguise, is_iterable, onlooker_of
from .source import check_interval
from .torch_source import TorchSource, torch_loader_in
from .watched_epoch import WatchedEpoch, follow
from .watched_source import WatchedSource, source_of

T = TypeVar("T", bound=Iterable[Any])

log = logging.getLogger("penstock")


def watch(iterable: T, name: str = "loader", monitor: bool | str | None = None, publish_interval: float = 0.2) -> T:
    """Publish what can be seen of a loader; returns it, and it yields the same batches.

    A torch DataLoader, one that Accelerate has prepared, another library's, or anything else that can be iterated. Most
    objects come back as themselves; for some, as lists and generators, what comes back stands in for them, and only
    what is iterated through it is seen. `monitor` is as for `loader.DataLoader`: without anywhere to publish to, the
    loader is left alone. Raises TypeError for what cannot be iterated, and for a `loader.DataLoader`.
    """
    if not is_iterable(iterable):
        raise TypeError(f"watch expects something that can be iterated, but got {iterable!r}")
    if _publishes_itself(iterable):
        raise TypeError("watch is for loaders of others; this one publishes by itself: give it monitor=")
    text("name", name)
    address = resolve(monitor)
    check_interval(publish_interval)
    if address is None or onlooker_of(iterable) is not None:
        return iterable
    try:
        source = _source(iterable, name)
        restarts = isinstance(getattr(type(iterable), "__iter__", None), types.FunctionType)
        watched: T = disguise(iterable, Watch(source, address, publish_interval, restarts))
        source.attach(watched)
    except Exception:
        log.warning("%s cannot be watched; it works as before", name, exc_info=True)
        return iterable
    return watched


def _publishes_itself(iterable: object) -> bool:
    """Is it a loader of ours, or of Accelerate's with ours inside?"""
    from ..dataloader import DataLoader

    inner = torch_loader_in(iterable)
    return isinstance(inner, DataLoader) and (inner is iterable or isinstance(iterable, type(inner)))


def _source(iterable: Any, name: str) -> WatchedSource:
    loader = torch_loader_in(iterable)
    return source_of(iterable, name) if loader is None else TorchSource(loader, name, type(iterable))


class Watch:
    """The `Onlooker` of what is watched. Begins to publish with the first epoch: by then it is known which process
    trains, and as which rank.
    """

    def __init__(self, source: WatchedSource, address: AnyAddress, interval: float, restarts: bool) -> None:
        self._source = source
        self._address = address
        self._interval = interval
        self._restarts = restarts
        """`iter()` runs code of the thing's own: one that is its own iterator may begin anew there."""
        self._owner: int | None = None
        self._publisher: object = None
        self._epoch: WatchedEpoch | None = None
        """The one under way, of something that is its own iterator."""

    def begin(self, iterator: Iterator[Any]) -> Any:
        """The iterator, watched; in a forked copy of the process, as it is."""
        try:
            return follow(self._source, iterator) if self._publishes() else iterator
        except Exception:
            self._source.give_up()
            return iterator

    def restart(self) -> None:
        epoch = self._epoch
        if epoch is not None and self._restarts and (epoch.batches or epoch.ended):
            epoch.leave()
            self._epoch = None

    def take(self, advance: Callable[[], Any]) -> Any:
        if self._source.waiting == threading.get_ident():
            return advance()  # an iterator of the thing that calls `next()` of the thing: training waits for that one
        try:
            if self._epoch is None and self._publishes():
                self._epoch = WatchedEpoch(self._source)
        except Exception:
            self._source.give_up()
        epoch = self._epoch
        if epoch is None or self._owner != os.getpid():
            return advance()
        ended = epoch.ended
        batch = epoch.take(advance)
        if ended:  # and yet there is another batch: it begins anew by itself
            self._epoch = None
        return batch

    def told(self, length: int) -> None:
        try:
            self._source.note_length(length)
        except Exception:
            self._source.give_up()

    def _publishes(self) -> bool:
        """Are batches counted here? The first call starts the publisher."""
        if self._source.gone or get_worker_info() is not None:
            return False  # in a worker, of whatever loader, nobody trains
        if self._owner is None:
            from .identity import make_identity
            from .publisher import Publisher

            self._owner = os.getpid()
            publisher = Publisher(self._source, self._address, self._interval, identity=make_identity(self._source))
            publisher.start()
            self._publisher = publisher
        return self._owner == os.getpid()
