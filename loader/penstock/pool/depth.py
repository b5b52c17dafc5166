"""How many tasks may be in flight: as many as torch has, and more only where waiting showed that more would help. Pure.

Finished batches take memory, so the window starts small and grows on evidence, which is time in which training waited
although workers could have made more:

1. A worker is *held back* when it has nothing to do, tasks wait, and only the window refuses them. While training waits
   for a batch and workers are held back, work is lost: so much as their share of all workers.
2. While training does not wait, what held-back workers could have made is remembered, up to what as many tasks again
   would have been. When training then waits, that would have spared it the wait, for as long as it lasts.
3. What would have been spared is added up; a share of the time passes as too little to be worth the memory: next to
   nothing for small batches, `DEAREST` where the window would fill the budget. When the sum comes to the time in which
   the pool makes a batch, and to that share of `HORIZON`, the window doubles; where that costs no memory that matters,
   it grows further at once.

So waiting that no window would spare (workers that are always busy) makes it no larger. It is halved when for a while
there were always more finished batches than the half would have held; each time it had to grow that while is longer.

Workers on other machines are given as many tasks as memory allows from the start: batches that are on the way count as
in flight, and of a worker over there nobody knows at the moment whether it has nothing to do.
"""

from __future__ import annotations

from ..protocol import WindowReason

TORCHS = 2
"""Tasks a worker that torch has in flight where nothing is given."""
LOOKAHEAD = 512
"""Batches that may be in flight at the most unless `prefetch_factor` says otherwise."""
NEGLIGIBLE = 4 << 20
"""Bytes of finished batches that are little in any training."""
DEAREST = 0.1
"""Share of the time that growing must spare where the window would then take the whole budget."""
HORIZON = 2_000_000_000
"""So much of the time, ns, has to show that share: not every hiccup of a busy machine is worth hundreds of MB."""
PATIENCE, LONGEST = 10_000_000_000, 600_000_000_000
"""Time after which a window of which half was not needed is halved, ns: at first, and at the most."""


def most_tasks(prefetch_factor: int | None, workers: int) -> int:
    """How many tasks may ever be in flight with so many workers."""
    return max(LOOKAHEAD, TORCHS * workers) if prefetch_factor is None else prefetch_factor * workers


class Depth:
    """How deep the window of one loader is. Pools that follow each other share it; only conductors change it."""

    def __init__(self, given: int | None = None) -> None:
        self.given = given
        """Tasks a worker, by `prefetch_factor`; None: as many as is found here."""
        self.far = False
        """Some of the workers run on other machines."""
        self._grown = 0
        """Tasks that may be in flight if that is more than torch has; 0: it is not."""
        self._full = False
        """It would grow further, but for memory."""
        self._at = 0
        """When it was looked at last, ns; 0: not yet, or there was a rest since."""
        self._waits = False
        self._idle = 0.0
        """Since the last look: does training wait, and what share of the workers is held back."""
        self._patience = PATIENCE
        self._was_full = False
        """Since the last rest a worker was held back."""
        self._owed = 0.0
        """Waiting that more would have spared, less what is too little to count, ns."""
        self._spare = 0.0
        """Work that held-back workers could have done before training waited, in ns of the whole pool."""
        self._watched = 0
        """For how long the fewest finished batches were looked for, ns,"""
        self._least = LOOKAHEAD
        """and how many those were."""

    def tasks(self, workers: int) -> int:
        """How many tasks may be in flight with so many workers."""
        if self.given is not None:
            return self.given * workers
        if self.far:
            return most_tasks(None, workers)
        return max(self._grown, TORCHS * workers)

    def reason(self, workers: int) -> WindowReason:
        """Why that is as many as it is."""
        if self.given is not None:
            return "given"
        if self._full or self.far:
            return "memory"
        if self._grown <= TORCHS * workers:
            return "start"
        return "most" if self._grown >= most_tasks(None, workers) else "grown"

    def rest(self) -> None:
        """Time that passes from now on counts for nothing: the pool is paused, or another epoch begins."""
        self._at, self._was_full = 0, False

    def look(
        self,
        now: int,
        workers: int,
        *,
        waits: bool,
        held_back: int,
        batch_ns: float,
        largest: int,
        budget: int,
        finished: int | None,
    ) -> None:
        """How things are now, at `now` ns, and until the next look.

        Whether training waits for a batch, how many of the workers are held back, what a batch takes to make, and how
        many bytes the largest takes, of how many there are for finished ones. How many of those there are; None: no
        task waits, so that says nothing.
        """
        elapsed, self._at = (now - self._at if self._at else 0), now
        if self.given is not None or self.far:
            return
        self._count(elapsed, workers, batch_ns, largest, budget)
        self._waits, self._idle = waits, held_back / max(workers, 1)
        self._was_full = self._was_full or held_back > 0
        price = self._price(workers, largest, budget)
        if self._owed > HORIZON * price and self._owed * workers >= batch_ns > 0:
            self._grow(workers, largest, budget)
        elif finished is not None and self._was_full and self._grown * largest > NEGLIGIBLE:
            self._may_shrink(elapsed, workers, finished)

    def _count(self, elapsed: int, workers: int, batch_ns: float, largest: int, budget: int) -> None:
        """Add up what more would have spared in the time that has passed."""
        lost = elapsed * self._idle
        if not self._waits:
            self._spare = min(self._spare + lost, self.tasks(workers) * batch_ns / max(workers, 1))
            lost = 0.0
        else:
            spared = min(self._spare, elapsed - lost)
            self._spare -= spared
            lost += spared
        self._owed = max(self._owed + lost - elapsed * self._price(workers, largest, budget), 0.0)

    def _price(self, workers: int, largest: int, budget: int) -> float:
        """The share of the time that doubling must spare."""
        return DEAREST * min(2 * self.tasks(workers) * largest / max(budget, 1), 1.0)

    def _grow(self, workers: int, largest: int, budget: int) -> None:
        tasks = self.tasks(workers)
        wanted = min(max(2 * tasks, NEGLIGIBLE // max(largest, 1)), most_tasks(None, workers))
        fits = max(budget // max(largest, 1), tasks)
        self._full = wanted > fits
        if min(wanted, fits) > tasks:
            self._grown = min(wanted, fits)
            self._patience = min(2 * self._patience, LONGEST)
        self._settle()

    def _may_shrink(self, elapsed: int, workers: int, finished: int) -> None:
        self._watched += elapsed
        self._least = min(self._least, finished)
        if self._watched < self._patience:
            return
        half = max(self._grown // 2, TORCHS * workers)
        if self._least >= self._grown - half > 0:
            self._grown, self._full = half, False
        self._settle()

    def _settle(self) -> None:
        """Begin to count anew."""
        self._owed = self._spare = 0.0
        self._watched, self._least = 0, LOOKAHEAD
