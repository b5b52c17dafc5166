"""Samples that take too long, and workers that died of one: who is to blame. The conductor's thread."""

from __future__ import annotations

import time

from ..tolerating import Bad
from .crews.crew import Worker
from .crews.reports import Died
from .roster import Roster
from .window import Task, Window

STACK = 0.5
"""Seconds that a worker has to tell its stack before it is ended."""
EARLY = 30_000_000
"""ns before its time is over at which a sample's stack is taken: telling it takes a while, too."""


class Hangs:
    """Ends workers that are at one sample for too long, and says which sample a dead worker was at."""

    def __init__(self, roster: Roster, tolerates: bool, sample_timeout: float | None, max_retries: int) -> None:
        """`tolerates`: a sample that is to blame is left out; else the batch fails."""
        self._roster = roster
        self._tolerates = tolerates
        self.timeout = sample_timeout
        """Seconds that a sample may take; None: nobody looks."""
        self._max_retries = max_retries
        self._ended: dict[int, tuple[int, str]] = {}
        """Key of each worker that was ended here → the place of its sample, and its stack."""
        self._stacks: dict[int, tuple[tuple[int, int], str]] = {}
        """Key of each worker whose sample is nearly out of time → which one, since when; and its stack."""
        self._settled: set[int] = set()
        """Keys of workers that were ended, or cannot be."""

    def patience(self) -> float:
        """How long the conductor may sleep until the sample that is under way for longest has had its time, ms."""
        now, most = time.monotonic_ns(), self._most()
        due = now + most - _early(most)  # of a sample that begins meanwhile, at the earliest
        for worker in self._roster:
            sample = worker.sample()
            if sample[0] >= 0 and worker.key not in self._settled:
                due = min(due, sample[1] + most - (0 if self._stack_of(worker, sample) else _early(most)))
        return max(due - now, 0) / 1e6 + 1

    def look(self) -> None:
        """End workers that are at one sample for too long. Called if there is a timeout."""
        now, most = time.monotonic_ns(), self._most()
        for worker in self._roster:
            sample = worker.sample()
            taken = now - sample[1]
            if sample[0] < 0 or taken <= most - _early(most) or worker.key in self._settled:
                continue
            if self._stack_of(worker, sample) is None:
                self._stacks[worker.key] = sample, worker.stack(STACK)
            if time.monotonic_ns() - sample[1] > most and worker.sample() == sample:
                self._end(worker, sample)

    def _most(self) -> int:
        """ns that a sample may take."""
        return int((self.timeout or 0.0) * 1e9)

    def _stack_of(self, worker: Worker, sample: tuple[int, int]) -> tuple[str] | None:
        """Its stack at this sample, if it was taken."""
        seen, stack = self._stacks.get(worker.key, (None, ""))
        return (stack,) if seen == sample else None

    def _end(self, worker: Worker, sample: tuple[int, int]) -> None:
        self._settled.add(worker.key)
        if worker.kill():
            self._ended[worker.key] = sample[0], self._stacks[worker.key][1]

    def blame(self, window: Window, died: Died) -> bool:
        """Leave out the sample of which a worker died, if it is known and was given its chances; was it ended here?"""
        ended = self._ended.pop(died.worker.key, None)
        self._settled.discard(died.worker.key)
        self._stacks.pop(died.worker.key, None)
        place = died.sample if ended is None else ended[0]
        task = next((each for each in window.out(window.owner(died.worker)) if each.number == died.number >= 0), None)
        if not self._tolerates or task is None or place < 0:
            return False
        if ended is None and task.crashes < self._max_retries:
            return False
        if ended is None:
            bad = Bad(_index(task, place), "dataset", died.message, "", task.crashes + 1, True)
        else:
            error = f"TimeoutError: it took more than {self.timeout:g} s (sample_timeout)"
            bad = Bad(_index(task, place), "dataset", error, ended[1], 1, True)
        task.without = {**(task.without or {}), place: bad}
        task.crashes = -1  # it is counted once more, and then begins with a clean slate
        return ended is not None


def _early(timeout: int) -> int:
    return min(EARLY, timeout // 4)


def _index(task: Task, place: int) -> object:
    """None: of one that was to take another's place, which the worker knows that meets it next."""
    if place >> 32:
        return None
    try:
        return task.indices[place]
    except (TypeError, IndexError, KeyError):
        return task.indices
