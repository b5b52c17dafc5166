"""Making a batch: fetch and collate, with seeds, costs and, if it fails, the sample at which it did.

Inline loading has one `BatchMaker`, and so has every worker, of whatever kind. What becomes of a batch then (it is
given to training, placed into a slot, sent) is the business of whoever has it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from .collating import collate_into, default_collate, in_huge_pages
from .costs import UNTIMED, Counts, Slow, count_batch
from .fetching import Fetcher, IterableFetcher, MapFetcher, sample_count
from .profiling.phases import COLLATING, FETCHING, IDLE, SENDING
from .profiling.stacks import codes_of
from .ready import Allocate
from .seeding import Seeder
from .taking import by_signal_handler
from .tolerating import NOTHING, Bad, Tolerance, TolerantFetcher, Without


class Phases(Protocol):
    """Told when a batch passes from one step to the next. A worker's `Recorder` writes that on the board."""

    def start(self, batch: int) -> object:
        """A task was taken up: the batch is being fetched."""

    def fetch_done(self) -> object:
        """All samples are there: the batch is being collated."""

    def collate_done(self) -> object:
        """The batch is made: it is being sent."""


class Moments:
    """The phases of a batch that training makes itself: in which it is, and when its samples were there, ns of the
    monotonic clock."""

    __slots__ = ("fetched", "words")

    def __init__(self) -> None:
        self.fetched = -1
        self.words = array("q", [IDLE, -1])
        """State and batch, for a profile."""

    def start(self, batch: int) -> None:
        """The fetcher notes when it begins."""
        self.words[1] = batch
        self.words[0] = FETCHING

    def fetch_done(self) -> None:
        self.fetched = time.monotonic_ns()
        self.words[0] = COLLATING

    def collate_done(self) -> None:
        self.words[0] = SENDING

    def over(self) -> None:
        """Training has it, or it has failed."""
        self.words[0] = IDLE


class BatchMaker:
    """Makes one batch after the other: `start`, `fetch`, `collate`, in that order and in one thread.

    All three raise what dataset and collate_fn raise; `failed_at` then names the sample.
    """

    def __init__(
        self,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        record_samples: int,
        phases: Phases,
        counts: Counts,
        allocate: Allocate | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        """`counts` are where sample times are counted; `allocate` gives memory for batches, from `fetch` on."""
        self._tolerance = tolerance
        self._batch = 0
        self.bad: list[Bad] = []
        """What was bad in the batch under way, if that is tolerated."""
        self.seeder: Seeder | None = None
        """Seeds the random generators for every batch; None: nobody does."""
        self.samples = 0
        """Samples in the batch under way."""
        self.slow: Slow = UNTIMED
        """The slowest samples of the batch under way."""
        self._auto_collation = auto_collation
        self._record = record_samples
        self._phases = phases
        self._counts = counts
        self._fetcher: Fetcher | None = None
        """Set while the dataset is asked."""
        self._indices: Any = None
        self.memory: Allocate | None = None
        """For a fetcher that makes whole batches; None: the collate function is the user's, and wants samples."""
        self._collate = collate_fn
        if collate_fn in (default_collate, torch.utils.data.default_collate):
            self.memory = in_huge_pages if allocate is None else allocate
            self._collate = default_collate if allocate is None else partial(collate_into, allocate=allocate)

    def start(self, batch: int) -> None:
        """A task was taken up."""
        self._phases.start(batch)
        self._fetcher = None
        self.samples, self.slow = 0, UNTIMED
        self._batch = batch
        if self._tolerance is not None:
            self.bad = []
        if self.seeder is not None:
            self.seeder.seed(batch)

    def fetch(self, fetcher: Fetcher, indices: Any) -> Any:
        """Return the samples of the batch; StopIteration: there are no more."""
        self._fetcher, self._indices = fetcher, indices
        fetch = fetcher.fetch if self._tolerance is None else self._fetch_what_can_be_had
        samples = fetch(indices)
        self._phases.fetch_done()
        self._fetcher = None
        if type(samples) is list and self._auto_collation:
            self.samples = len(samples)
        else:
            self.samples = 0 if samples is NOTHING else sample_count(self._auto_collation, samples)
        if fetcher.stamps or fetcher.surprise:
            self.slow = count_batch(fetcher, self._counts, self._record)
        return samples

    def _fetch_what_can_be_had(self, indices: Any) -> Any:
        fetcher: Any = self._fetcher
        if isinstance(fetcher, TolerantFetcher):
            fetcher.batch, fetcher.seeder = self._batch, self.seeder
            fetcher.without = {}
            if isinstance(indices, Without):
                fetcher.without = {place: Bad(*bad) for place, bad in indices.places.items()}
                indices = self._indices = indices.indices
        try:
            samples = fetcher.fetch(indices)
        finally:
            self.bad = getattr(fetcher, "bad", [])
        return NOTHING if self._auto_collation and self.bad and not sample_count(True, samples) else samples

    def collate(self, samples: Any) -> Any:
        """Return the batch; NOTHING if nothing is left of it."""
        if samples is NOTHING:
            data = samples
        elif self._tolerance is None:
            data = self._collate(samples)
        else:
            try:
                data = self._collate(samples)
            except Exception as error:
                if by_signal_handler(error):
                    raise
                self.bad = [*self.bad, self._tolerance.bad(None, "collate_fn", error, 1)]
                self.samples, data = 0, NOTHING
        self._phases.collate_done()
        return data

    def failed_sample(self) -> str:
        """The sample at which the dataset failed: its index, or its number in the batch; empty: not in it."""
        fetcher, indices = self._fetcher, self._indices
        if fetcher is None:
            return ""
        position = fetcher.position()
        if not fetcher.by_index:
            return str(position)
        try:
            return repr(indices[position])
        except (TypeError, IndexError, KeyError):
            return repr(indices)

    def failed_at(self) -> str:
        """The same for a message."""
        sample, fetcher = self.failed_sample(), self._fetcher
        if fetcher is None:
            return ""
        return f", sample index {sample}" if fetcher.by_index else f", sample {sample} of the batch"


ROOTS = codes_of(BatchMaker.fetch, BatchMaker.collate, MapFetcher.fetch, IterableFetcher.fetch)
"""Code below which a profile's stacks begin: what it calls is the dataset, or collate_fn."""
