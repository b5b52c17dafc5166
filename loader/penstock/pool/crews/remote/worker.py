"""A worker on another machine, as training knows it: its row is a copy of the one over there, a little late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....agent import messages as m
from ....usage import Used, Waits
from ..board import Word, local_row
from ..board_worker import BoardWorker, parcels
from ..crew import Order

if TYPE_CHECKING:
    from ....profiling.sampler import Chunk
    from ....profiling.session import Sink
    from ...window import Task
    from .link import Link


class RemoteWorker(BoardWorker):
    """A worker over there: what it is told goes over its link, and comes back the same way."""

    def __init__(self, link: Link, key: int, number: int) -> None:
        super().__init__(key, number, local_row())
        self.link = link
        self.host = link.host
        self._used = Used(elsewhere=True)
        self._waits: Waits | None = None
        self._order = 0
        self._sinks: dict[int, Sink] = {}
        """Order to sample → where what is seen goes."""

    # -- what it is told ------------------------------------------------------------------------------------------

    def give(self, epoch: int, tasks: list[Task]) -> None:
        self._tell(m.Give(self.key, parcels(epoch, tasks), self.link.limit))

    def adopt(self, epoch: int, shard: int, state: Any) -> None:
        self._tell(m.AdoptShard(self.key, epoch, shard, state))

    def steer(self, order: Order) -> None:
        self._tell(m.Steer(self.key, order))

    def recall(self) -> None:
        self._tell(m.Recall(self.key, self.dispatched))

    def kill(self) -> bool:
        self._tell(m.End(self.key))
        return not self.closed

    def profile(self, rate: float, sink: Sink) -> None:
        self._order += 1
        if rate:
            self._sinks[self._order] = sink
        self._tell(m.Profile(self.key, self._order, rate))

    def _tell(self, message: m.Message) -> None:
        if not self.closed:
            self.link.send(message)

    # -- what it tells --------------------------------------------------------------------------------------------

    def used(self) -> Used:
        return self._used

    def waits_for(self) -> Waits | None:
        """What was seen over there since it was last asked."""
        waits, self._waits = self._waits, None
        return waits

    def stack(self, patience: float) -> str:
        return "" if self.closed else self.link.stack_of(self, patience)

    def why_silent(self) -> str:
        return self.link.silence

    def show(self, row: bytes) -> None:
        """This is its row, over there."""
        if row:
            words = memoryview(row).cast("q")
            mine, here = self.row, self.link.clock.here
            mine[Word.STATE : Word.STATE + len(words)] = words
            mine[Word.SINCE] = here(mine[Word.SINCE])
            mine[Word.SAMPLE_SINCE] = here(mine[Word.SAMPLE_SINCE])

    def now_uses(self, used: Used) -> None:
        """What the system over there says of it."""
        self._used = used._replace(elsewhere=True)

    def seen_waiting(self, waits: Waits) -> None:
        self._waits = waits

    def sampled(self, order: int, chunk: Chunk) -> None:
        """It was seen there."""
        sink = self._sinks.get(order)
        if sink is not None:
            sink.sampled((self.key, order), chunk)
            if chunk.last:
                del self._sinks[order]

    def end(self) -> None:
        """Nothing more comes."""
        self.closed = True
        for order, sink in self._sinks.items():
            sink.gone((self.key, order))
        self._sinks.clear()
