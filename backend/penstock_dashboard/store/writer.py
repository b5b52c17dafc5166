"""The one thread that writes to the database.

The event loop adds to a batch and never waits. The thread takes the whole batch, stores it in one transaction and
reports it to the loop: only then are messages acknowledged, events shown and commands delivered. How long a batch may
wait is the caller's choice, call by call (`within`). A batch that has grown to `database.batch` bytes is due at once,
and nothing more should be added to it: whoever reads from loaders looks (`is_full`).

Claims to loaders are made between two batches, all that wait at once, and after everything that was added before.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .batch import Batch, LoaderRecord
from .database import Claim, Database, Unavailable, Wanted

log = logging.getLogger("penstock.store")

END_WITHIN = 10.0
"""Seconds that the thread has to store what waits when it shall end."""
MOST_CLAIMS = 256
"""Claims that are made in one transaction."""

Job = Callable[[Database], None]
Claimed = Callable[[Claim | Exception], None]


class Writer(threading.Thread):
    """The thread that writes, and what waits for it."""

    def __init__(self, database: Database, commit: float, committed: Callable[[Batch, bool], None]) -> None:
        super().__init__(name="penstock-store", daemon=True)
        self.database = database
        self._commit = commit
        self._committed = committed
        self._condition = threading.Condition()
        self._batch = Batch()
        self._claims: list[tuple[Wanted, Claimed]] = []
        self._jobs: list[Job] = []
        self._due: float | None = None
        self._ending = False
        self._later: dict[int, LoaderRecord] = {}
        """Loaders as they are known by now, to be stored when there is nothing more urgent."""
        self._later_sizes: dict[int, int] = {}
        """Owner → bytes of them."""

    # ------------------------------------------------------------------------------------ called by the loop

    @property
    def full(self) -> bool:
        """So much waits that nothing more should be added."""
        return self._batch.size >= self.database.batch

    def is_full(self, owner: int) -> bool:
        """So much of this owner's waits, or of all, that nothing more of its should be added."""
        share = self._batch.shares.get(owner, 0) + self._later_sizes.get(owner, 0)
        return share >= self.database.batch // 2 or self.full

    def add(self, change: Callable[[Batch], Any], within: float | None = None) -> None:
        """Change the waiting batch; it is stored `within` so many seconds."""
        with self._condition:
            change(self._batch)
            soon = self._commit if within is None else within
            due = time.monotonic() + (0.0 if self.full else soon)
            if self._due is None or due < self._due:
                self._due = due
                self._condition.notify()

    def claim(self, wanted: Wanted, claimed: Claimed) -> None:
        """Claim a loader; `claimed` is called on this thread."""
        with self._condition:
            self._claims.append((wanted, claimed))
            self._due = time.monotonic()  # what waits goes first
            self._condition.notify()

    def run_job(self, job: Job) -> None:
        """Run something between two transactions."""
        with self._condition:
            self._jobs.append(job)
            self._condition.notify()

    def end(self) -> None:
        """Store what waits, then stop."""
        with self._condition:
            self._ending = True
            self._condition.notify()
        if self.is_alive():
            self.join(timeout=END_WITHIN)
            self.database.give_up()

    # ----------------------------------------------------------------------------------- on the writer thread

    def run(self) -> None:
        self.database.begin()
        with contextlib.suppress(Unavailable):  # it was told to give up
            self._write()

    def _write(self) -> None:
        while True:
            with self._condition:
                while not (self._ending or self._jobs or self._is_due() or self._later or self.database.busy):
                    self._condition.wait(1.0 if self._due is None else max(0.0, self._due - time.monotonic()))
                    if self._due is None:
                        break  # a second went by: something may be due
                batch, jobs, claims = Batch(), self._jobs, self._claims
                self._jobs, self._claims = [], []
                if self._is_due() or self._ending:
                    batch, self._batch, self._due = self._batch, Batch(), None
                ending = self._ending
            if batch:
                self._store(batch)
            for first in range(0, len(claims), MOST_CLAIMS):
                self._claim(claims[first : first + MOST_CLAIMS])
            for job in jobs:
                job(self.database)
            self._store_loaders(all_of_them=ending)
            if ending:
                self.database.close()
                return
            self.database.tend()

    def _is_due(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def _store(self, batch: Batch) -> None:
        for key in batch.forgotten:
            self._later.pop(key, None)
        # What else is known of loaders may be large, and others should not wait for it.
        self._later.update(batch.loaders)
        self._weigh_later()
        stored = self.database.store(batch)
        self._committed(stored, not self.database.warning)

    def _claim(self, claims: list[tuple[Wanted, Claimed]]) -> None:
        try:
            made: Sequence[Claim | Exception] = self.database.claim([wanted for wanted, _ in claims])
        except Exception as error:
            log.exception("loaders could not be claimed")
            made = [error] * len(claims)
        for (_, claimed), claim in zip(claims, made, strict=True):
            claimed(claim)

    def _store_loaders(self, all_of_them: bool) -> None:
        """Some of the loaders that wait."""
        while self._later:
            records: list[LoaderRecord] = []
            while self._later and sum(record.size for record in records) < self.database.batch // 2:
                records.append(self._later.pop(next(iter(self._later))))
            self.database.store_loaders(records)
            self._weigh_later()
            self._committed(Batch(), not self.database.warning)  # there is room again
            if not all_of_them:
                break

    def _weigh_later(self) -> None:
        sizes: dict[int, int] = {}
        for record in self._later.values():
            sizes[record.owner] = sizes.get(record.owner, 0) + record.size
        self._later_sizes = sizes
