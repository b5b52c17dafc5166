"""A worker that keeps account of itself in a row of a board, and is sent messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...tolerating import Without
from .board import FETCHING, SENDING, STATES, TIME_OF, Word
from .crew import Order, Progress, Worker
from .messages import Adopt, Look, Message

if TYPE_CHECKING:
    from ..window import Task


class BoardWorker(Worker):
    """What processes and threads have in common, as the conductor sees them."""

    def __init__(self, key: int, number: int, row: memoryview) -> None:
        super().__init__(key, number)
        self.row = row

    def send(self, message: Message) -> None:
        """Send it a message; whether that arrives is seen by what comes back."""
        raise NotImplementedError

    def adopt(self, epoch: int, shard: int, state: Any) -> None:
        self.send(Adopt(epoch, shard, state))

    def steer(self, order: Order) -> None:
        self.row[Word.CONTROL] = order
        self.send(Look())

    def recall(self) -> None:
        self.row[Word.RECALLED] = self.dispatched

    def started(self) -> int:
        return self.row[Word.STARTED]

    def busy_for(self) -> int:
        return time.monotonic_ns() - self.row[Word.SINCE] if self.at() >= 0 else 0

    def at(self) -> int:
        """The batch that it is at; -1: none."""
        return self.row[Word.BATCH] if FETCHING <= self.row[Word.STATE] <= SENDING else -1

    def progress(self, now: int) -> Progress:
        row = self.row[: Word.COST].tolist()
        state, since = row[Word.STATE], 0 if self.closed else row[Word.SINCE]
        if since:
            row[TIME_OF.get(state, Word.IDLE)] += max(now - since, 0)
        return Progress(
            "retiring" if self.leaving else "dead" if self.closed else STATES[state],
            since,
            row[Word.BATCH],
            row[Word.BATCHES],
            row[Word.SAMPLES],
            row[Word.BYTES],
            row[Word.FETCH],
            row[Word.COLLATE],
            row[Word.SEND],
            row[Word.IDLE],
        )

    def sample(self) -> tuple[int, int]:
        place = self.row[Word.SAMPLE] - 1 if self.row[Word.STATE] == FETCHING else -1
        return place, self.row[Word.SAMPLE_SINCE]

    def costs(self) -> list[int]:
        return self.row[Word.COST :].tolist()


def parcels(epoch: int, tasks: list[Task]) -> list[tuple[int, int, int, Any, int]]:
    """Tasks as they travel."""
    return [
        (epoch, task.batch, task.shard, Without(task.indices, task.without), task.number)
        if task.without
        else (epoch, task.batch, task.shard, task.indices, task.number)
        for task in tasks
    ]
