"""One epoch of something that is watched: a look at the clock before and after each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .disguise import stand_in

if TYPE_CHECKING:
    from .watched_source import WatchedSource


class WatchedEpoch:
    """An `Onlooker` of an iterator. Whatever fails here is ours alone: training gets its batches or its own errors."""

    def __init__(self, source: WatchedSource, iterator: Any = None) -> None:
        self._source = source
        self.iterator = iterator
        """None where the thing that is watched is its own iterator: an epoch must not keep it alive."""
        self.inner: Callable[[], Any] = _nothing
        """Gives torch's own iterator, where one is seen: this one, or one within it, which is not kept alive."""
        self.tasks: Any = None
        """Its table of tasks, where it has workers."""
        self.length: int | None = None
        """Batches, where known."""
        self.batches = 0
        """Batches so far."""
        self.ended = False
        self.number = source.begin(self)

    def take(self, advance: Callable[[], Any]) -> Any:
        source, here = self._source, threading.get_ident()
        # Where `next()` of one iterator calls that of another one of the thing, the outer call is training's.
        if self.ended or source.gone or source.waiting == here:
            return advance()
        source.waiting = here
        self._tell(source.enter)
        try:
            batch = advance()
        except StopIteration:
            self.ended = True
            self._tell(source.end, "ended")
            raise
        except BaseException as error:
            self._tell(source.fail, error)
            raise
        finally:
            source.waiting = 0
        self._tell(source.leave, batch)
        self.batches += 1
        return batch

    def begin(self, iterator: Iterator[Any]) -> Any:
        """`iter()` of an iterator gave another one: it is as it is."""
        return iterator

    def restart(self) -> None:
        """`iter()` of an iterator is the iterator."""

    def told(self, length: int) -> None:
        """What is left of an epoch is not its length."""

    def leave(self) -> None:
        """Nobody goes on with it."""
        if not self.ended:
            self.ended = True
            self._tell(self._source.end, "abandoned")

    def __del__(self) -> None:
        if "number" in self.__dict__:
            self.leave()

    def _tell(self, what: Callable[..., None], *arguments: Any) -> None:
        try:
            what(self, *arguments)
        except Exception:
            self._source.give_up()


def _nothing() -> None:
    return None


def follow(source: WatchedSource, iterator: Any) -> Any:
    """An iterator, watched as an epoch of its own."""
    return stand_in(iterator, WatchedEpoch(source, iterator))
