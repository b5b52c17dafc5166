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


class Hangs:
    def __init__(self, roster: Roster, tolerates: bool, sample_timeout: float | None, max_retries: int) -> None:
        """`tolerates`: a sample that is to blame is left out; else the batch fails."""
        self._roster = roster
        self._tolerates = tolerates
        self._timeout = sample_timeout
        self._max_retries = max_retries
        self._ended: dict[int, tuple[int, str]] = {}
        """Key of each worker that was ended here → the place of its sample, and its stack."""
        self._settled: set[int] = set()
        """Keys of workers that were ended, or cannot be."""

    def patience(self) -> float | None:
        """How long the conductor may sleep until the sample that is under way for longest has had its time, ms."""
        if self._timeout is None:
            return None
        now, most = time.monotonic_ns(), self._timeout * 1e9
        workers = [worker for worker in self._roster if worker.key not in self._settled]
        began = [since for place, since in (worker.sample() for worker in workers) if place >= 0]
        # A sample that begins meanwhile is due later than that, or than a whole timeout from now.
        return max(min(began, default=now) + most - now, 0) / 1e6 + 1

    def look(self) -> None:
        """End workers that are at one sample for too long."""
        if self._timeout is None:
            return
        now, most = time.monotonic_ns(), int(self._timeout * 1e9)
        for worker in self._roster:
            place, since = worker.sample()
            if place >= 0 and now - since > most and worker.key not in self._settled:
                self._end(worker, place)

    def _end(self, worker: Worker, place: int) -> None:
        stack = worker.stack(STACK)
        if worker.sample()[0] == place:
            self._settled.add(worker.key)
            if worker.kill():
                self._ended[worker.key] = place, stack

    def blame(self, window: Window, died: Died) -> bool:
        """Leave out the sample of which a worker died, if it is known and was given its chances; was it ended here?"""
        ended = self._ended.pop(died.worker.key, None)
        self._settled.discard(died.worker.key)
        place = died.sample if ended is None else ended[0]
        task = next((each for each in window.out(window.owner(died.worker)) if each.number == died.number >= 0), None)
        if not self._tolerates or task is None or place < 0:
            return False
        if ended is None and task.crashes < self._max_retries:
            return False
        if ended is None:
            bad = Bad(_index(task, place), "dataset", died.message, "", task.crashes + 1, True)
        else:
            error = f"TimeoutError: it took more than {self._timeout:g} s (sample_timeout)"
            bad = Bad(_index(task, place), "dataset", error, ended[1], 1, True)
        task.without = {**(task.without or {}), place: bad}
        task.crashes = -1  # it is counted once more, and then begins with a clean slate
        return ended is not None


def _index(task: Task, place: int) -> object:
    """None: of one that was to take another's place, which the worker knows that meets it next."""
    if place >> 32:
        return None
    try:
        return task.indices[place]
    except (TypeError, IndexError, KeyError):
        return task.indices
