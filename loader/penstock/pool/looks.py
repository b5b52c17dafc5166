"""What workers are doing, when somebody asks. The conductor's thread.

One worker is looked at in a step: a look may take a while, and batches are not to wait for many of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from .crews.crew import Worker
from .roster import Roster

PATIENCE = 0.2
"""Seconds that a worker has to tell its stack,"""
IMPATIENCE = 0.05
"""and that those have who come after one that did not."""


class Seen(NamedTuple):
    """What a worker was doing when it was looked at."""

    worker: int
    """Its id; -1: training."""
    pid: int
    """Its process; 0: there is none."""
    state: str
    """What it was doing, in the words of `WorkerState`; empty: not known."""
    batch: int
    """The batch that it was at; -1: none."""
    stack: str
    """Its Python stack as text."""
    silence: str
    """Why there is no stack; empty: there is one."""


class _Look(NamedTuple):
    left: deque[tuple[int, int]]
    """Id and key of those who are still to be looked at."""
    answer: Callable[[list[Seen]], None]
    """Called with what was seen of all of them."""
    seen: list[Seen]
    """What was seen so far."""


class Looks:
    """The looks that were asked for and are not answered yet."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.under_way: deque[_Look] = deque()
        """Those that were asked for and are not answered."""

    def add(self, workers: list[Worker], answer: Callable[[list[Seen]], None]) -> None:
        """Look at these workers, one by one, and then say what was seen."""
        self.under_way.append(_Look(deque((each.id, each.key) for each in workers), answer, []))

    def step(self) -> None:
        """Look at the next one. There must be one."""
        look = self.under_way[0]
        if look.left:
            number, key = look.left.popleft()
            worker = next((each for each in self._roster if each.key == key), None)
            if worker is None:
                look.seen.append(Seen(number, 0, "", -1, "", "it is not there any more"))
            else:
                waited = any(each.silence for each in look.seen)
                look.seen.append(seen(worker, IMPATIENCE if waited else PATIENCE))
        if not look.left:
            self.under_way.popleft()
            look.answer(look.seen)

    def end(self) -> None:
        """Nobody is looked at any more."""
        while self.under_way:
            look = self.under_way.popleft()
            gone = [Seen(number, 0, "", -1, "", "the pool has ended") for number, _ in look.left]
            look.answer([*look.seen, *gone])


def seen(worker: Worker, patience: float) -> Seen:
    """What a worker is doing now. May wait, for so many seconds."""
    progress = worker.progress(0)
    if not worker.pid:
        return Seen(worker.id, 0, progress.state, progress.batch, "", "it is still being started")
    stack = worker.stack(patience)
    silence = "" if stack else worker.why_silent()
    return Seen(worker.id, worker.pid, progress.state, progress.batch, stack, silence)
