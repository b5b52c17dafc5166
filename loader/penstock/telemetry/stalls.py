"""Reorder stalls: training waits for one batch while later ones are finished. A plain object without IO.

The conductor tells it, after every step, whether training waits in such a way and for which batch. It answers when a
stall has lasted so long that the culprit's stack is wanted, and when it has ended, with what is to be told of it.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT = 1_000_000
"""A stall below so many ns is counted but no event."""


@dataclass(slots=True)
class OpenStall:
    """A reorder stall that is not over."""

    began: int
    """ns of the monotonic clock."""
    epoch: int
    """The epoch of the batch that training waits for."""
    batch: int
    """Its batch index."""
    worker: int
    """Id of the worker that has it; -1: none."""
    held_back: int
    """Finished batches that have to wait."""
    task: tuple[int, int]
    """Its shard, and its number there; (-1, batch) without shards."""
    slowest_index: str = ""
    """Index of the batch's slowest sample, as text; empty: not known yet."""
    slowest_ns: int = 0
    """What that sample took, ns."""
    stack: str | None = None
    """The stack of the worker that has it; None: nobody has looked."""
    ended: int = 0
    """When the stall was over, ns of the monotonic clock; 0: it is not."""

    def length(self) -> int:
        return self.ended - self.began


class StallWatch:
    """Follows what training waits for, and says when a reorder stall is over."""

    def __init__(self, long: int) -> None:
        """`long`: after so many ns of a stall the culprit's stack is taken, once."""
        self.open: OpenStall | None = None
        self._long = long

    def observe(
        self,
        now: int,
        stalled: bool,
        epoch: int = 0,
        batch: int = 0,
        worker: int = -1,
        held: int = 0,
        task: tuple[int, int] | None = None,
    ) -> OpenStall | None:
        """Say how things are now; returns a stall that has just ended. `task`: as far as somebody has it."""
        task = task or (-1, batch)
        current = self.open
        if current is not None and (not stalled or (epoch, batch) != (current.epoch, current.batch)):
            current.ended = now
            self.open = None
            if stalled:
                self.open = OpenStall(now, epoch, batch, worker, held, task)
            return current
        if stalled:
            if current is None:
                self.open = OpenStall(now, epoch, batch, worker, held, task)
            else:
                current.held_back = max(current.held_back, held)
                if worker >= 0:
                    current.worker, current.task = worker, task
        return None

    def finished(self, epoch: int, task: tuple[int, int], slowest_index: str, slowest_ns: int) -> None:
        """A task is done; if training waits for it, this was its slowest sample."""
        current = self.open
        if current is not None and (current.epoch, current.task) == (epoch, task):
            current.slowest_index, current.slowest_ns = slowest_index, slowest_ns

    def attach(self, stack: str) -> None:
        """The culprit's stack; it is not asked for again."""
        if self.open is not None:
            self.open.stack = stack

    def stack_due(self, now: int) -> bool:
        """Has the stall lasted so long that the stack should be taken now?"""
        current = self.open
        return current is not None and current.stack is None and now - current.began >= self._long

    def next_due(self, now: int) -> int | None:
        """ns until the stack is due; None: it is not."""
        current = self.open
        if current is None or current.stack is not None:
            return None
        return max(current.began + self._long - now, 0)
