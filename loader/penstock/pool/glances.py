"""Glances at what workers wait for: now and then, at random moments, all at once. The conductor's thread.

How long a batch took says nothing of what it waited for: a sleep takes as long beside others, a lock does not. A glance
costs about 10 µs a worker, so there are many of them only after the number of workers has changed.

A moment at which a batch has just come is not a random one: its worker has let go of what others wait for. So a glance
that is due when the conductor was woken by a batch is put off a little.
"""

from __future__ import annotations

import random
import time

from .epoch import Epoch
from .observer import Observer
from .roster import Roster

OFTEN, SELDOM = 0.03, 0.25
"""Seconds between two glances, on average: at first, and then."""
FIRST = 50
"""Glances with the same number of workers that are made often."""
PUT_OFF, TIMES = 0.005, 4
"""By how many seconds at the most a glance is put off when a batch has just come, and how often."""
MOST = 8
"""Workers that are looked at in one glance, chosen at random if there are more."""


class Glances:
    """Decides when to look at what workers wait for, and tells the observer what was seen."""

    def __init__(self, roster: Roster, observer: Observer) -> None:
        self._roster = roster
        self._observer = observer
        self._chance = random.Random()  # not the one that the training seeds
        self._workers = 0
        self._made = 0
        """Glances with as many workers."""
        self._due = 0.0
        self._put_off = 0
        """How often the next one was put off."""

    def patience(self) -> float:
        """How long the conductor may sleep until the next, ms."""
        return max(self._due - time.monotonic(), 0.0) * 1000 + 1

    def look(self, epoch: Epoch, woken: bool) -> None:
        """Glance, if it is time. `woken`: by a report, not by the clock."""
        now = time.monotonic()
        if now < self._due:
            return
        if woken and self._put_off < TIMES:
            self._put_off += 1
            self._due = now + self._chance.uniform(0.0, PUT_OFF)
            return
        self._put_off = 0
        workers = [worker for worker in self._roster if worker.up and not worker.leaving and not worker.closed]
        if len(workers) != self._workers:
            self._workers, self._made = len(workers), 0
        self._made += 1
        self._due = now + (OFTEN if self._made <= FIRST else SELDOM) * self._chance.uniform(0.5, 1.5)
        # After tasks were handed out, somebody has none although there is room: there are none.
        room = epoch.window.has_room(epoch.taken, epoch.taken_bytes)
        flows = not room or all(worker.outstanding for worker in workers)
        looked_at = workers if len(workers) <= MOST else self._chance.sample(workers, MOST)
        waits = [waits for waits in (worker.waits_for() for worker in looked_at) if waits is not None]
        self._observer.glanced(now, len(workers), flows, waits)
