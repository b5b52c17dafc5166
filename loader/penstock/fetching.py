"""Fetchers: one for map-style, one for iterable-style datasets.

A fetcher returns raw samples; collation is a step of its own, so that the two can be timed apart. Whoever catches an
exception can ask it at which sample it was.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Iterator
from itertools import chain, islice
from operator import length_hint
from typing import Any, Protocol

from torch.utils.data import Subset

from .ready import Allocate, ReadyBatch
from .rows import TensorRows
from .taking import by_next

_clock = time.monotonic_ns

CHEAP = 20_000
"""Samples that take less than so many ns are timed in one batch of TIMED_STRIDE only: the clock would cost more."""
TIMED_STRIDE = 16
WARY = 256
"""Batches of which all samples are timed after one of cheap samples took long; rarely enough to cost nothing."""


class Fetcher(Protocol):
    """Asks a dataset for the samples of one batch after another."""

    stamps: list[int]
    """When each sample of the batch was there, ns of the monotonic clock; empty if they were not timed."""
    began: int
    """When the first one was asked for."""
    by_index: bool
    """Samples are asked for by index, and not one after the other."""
    together: int
    """How many samples of the batch came all together, so that only their mean time is known; 0: one by one."""
    surprise: int
    """ns a sample of a batch whose samples were not timed because they are cheap, and which was not cheap; else 0."""

    def position(self) -> int:
        """How many samples of the batch under way are there."""

    def fetch(self, index: Any) -> Any:
        """Return the samples of one batch, or one sample if there is no automatic batching."""


class Pace:
    """Which batches are fetched in haste, without a look at the clock after every sample."""

    def __init__(self, time_all: bool) -> None:
        """`time_all`: time every sample, however cheap."""
        self._time_all = time_all
        self._hasty = 0
        self._wary = 0
        self._rest = 0
        """Batches for which nothing makes it wary: on a busy machine a batch of cheap samples often takes long."""
        self._found_cheap = False

    def hurries(self) -> bool:
        """Is the next batch fetched in haste?"""
        if self._rest:
            self._rest -= 1
        if self._hasty:
            self._hasty -= 1
            return True
        return False

    def surprise(self, taken: int, samples: int) -> int:
        """A batch was fetched in haste: ns a sample, if that was not cheap; else 0."""
        if taken <= CHEAP * samples:
            return 0
        self._be_wary()
        return taken // max(samples, 1)

    def judge(self, taken: int, samples: int) -> bool:
        """The samples of a batch were timed. Is it worth counting? Of cheap ones, no more than without a surprise."""
        if self._wary:
            self._wary -= 1
            return taken >= CHEAP * samples or self._time_all or self._wary % TIMED_STRIDE == 0
        if taken >= CHEAP * samples:
            if self._found_cheap:
                self._be_wary()
        elif not self._time_all:
            self._hasty, self._found_cheap = TIMED_STRIDE - 1, True
        return True

    def _be_wary(self) -> None:
        if not self._rest:
            self._hasty, self._wary, self._rest = 0, WARY, 16 * WARY


class MapFetcher:
    """Asks a map-style dataset for samples by index."""

    by_index = True

    def __init__(
        self, dataset: Any, auto_collation: bool, time_all: bool = False, allocate: Allocate | None = None
    ) -> None:
        """`allocate` gives memory for batches that are gathered at once; None: the collate function wants samples."""
        single = one_by_one(dataset) if auto_collation else None
        self.dataset = dataset if single is None else single
        self.at_once = auto_collation and single is None
        self._allocate = allocate
        self._rows = None if time_all or allocate is None or not auto_collation else TensorRows.of(dataset)
        self._pace = Pace(time_all)
        self.auto_collation = auto_collation
        self.stamps: list[int] = []
        self._samples: list[Any] = []
        self._left: Iterator[Any] | None = None
        self._size = 0
        self.began = self.surprise = self.together = 0

    def fetch(self, index: Any) -> Any:
        samples: list[Any] = []
        stamps: list[int] = []
        self._samples, self.stamps = samples, stamps
        self._left = None
        self.surprise = self.together = 0
        self.began = start = _clock()
        if not self.auto_collation:
            sample = self.dataset[index]
            stamps.append(_clock())
            return sample
        if self.at_once:
            whole = self.dataset.__getitems__(index)
            self._came(length_hint(whole, 1))
            return list(whole) if type(whole) is ReadyBatch and self._allocate is None else whole
        if self._rows is not None and self._allocate is not None:
            ready = self._rows.gather(index, self._allocate)
            if ready is not None:
                self._came(len(ready))
                return ready
        dataset = self.dataset
        if type(index) is list and self._pace.hurries():
            self._size = len(index)
            self._left = left = iter(index)
            samples = [dataset[key] for key in left]
            self.surprise = self._pace.surprise(_clock() - start, len(samples))
            return samples
        keep, stamp, clock = samples.append, stamps.append, _clock
        for key in index:
            keep(dataset[key])
            stamp(clock())
        if stamps and not self._pace.judge(stamps[-1] - start, len(stamps)):
            self.stamps = []
        return samples

    def _came(self, together: int) -> None:
        self.together = together
        if together:
            self.stamps.append(_clock())

    def position(self) -> int:
        if self._left is not None:
            return self._size - length_hint(self._left) - 1
        return len(self._samples)


def one_by_one(dataset: Any) -> Any:
    """What to ask for the samples of a batch one by one; None if the dataset wants to be asked for all at once.

    Torch's Subset has `__getitems__` whether what it is a subset of has it or not. Where it has not, its samples come
    one by one in any case, and so their times can be told apart.
    """
    if not getattr(dataset, "__getitems__", None):
        return dataset
    if isinstance(dataset, Subset) and getattr(dataset.__getitems__, "__func__", None) is Subset.__getitems__:
        whole = one_by_one(dataset.dataset)
        return None if whole is None else _Picked(dataset, whole)
    return None


class _Picked:
    """The samples of a Subset, one at a time, as its `__getitems__` takes them."""

    __slots__ = ("_subset", "_whole")

    def __init__(self, subset: Subset[Any], whole: Any) -> None:
        self._subset = subset
        self._whole = whole

    def __getitem__(self, key: Any) -> Any:
        return self._whole[self._subset.indices[key]]


class IterableFetcher:
    """Raises StopIteration when the dataset has no more batches."""

    by_index = False
    together = 0

    def __init__(
        self,
        dataset: Any,
        auto_collation: bool,
        drop_last: bool,
        state: Any = None,
        time_all: bool = False,
        *,
        over: bool = False,
    ) -> None:
        """`state` is what `state_dict` gave: the dataset goes on from there.

        `over`: it is the state after a whole epoch, and another is to begin. A dataset may take it for a place in the
        epoch before, and be at its end at once; it is asked again then.
        """
        self.auto_collation = auto_collation
        self.drop_last = drop_last
        self._dataset = dataset
        if state is not None and "dataset" in state:
            dataset.load_state_dict(state["dataset"])
        self.iterator: Iterator[Any] = iter(dataset)
        if state is not None and "iterator" in state:
            self.iterator.load_state_dict(state["iterator"])  # type: ignore[attr-defined]
        self._items = by_next(self.iterator)
        self._at_an_end = over
        self.ended = False
        self.stateful = saves(self.iterator) or saves(dataset)
        self.stamps: list[int] = []
        self._pace = Pace(time_all)
        self.began = self.surprise = 0
        self._samples: list[Any] = []

    def fetch(self, index: Any) -> Any:
        """`index` is only counted: as many samples are drawn as it has entries."""
        samples: list[Any] = []
        stamps: list[int] = []
        self._samples, self.stamps = samples, stamps
        self.surprise = 0
        self.began = start = _clock()
        if self.ended:
            raise StopIteration
        if self._at_an_end:
            self._begin_again()
        if not self.auto_collation:
            sample = next(self._items)
            stamps.append(_clock())
            return sample
        if self._pace.hurries():
            samples.extend(islice(self._items, len(index)))
            self.ended = len(samples) < len(index)
            self.surprise = self._pace.surprise(_clock() - start, len(samples))
        else:
            for _ in index:
                try:
                    samples.append(next(self._items))
                except StopIteration:
                    self.ended = True
                    break
                stamps.append(_clock())
            if stamps and not self._pace.judge(stamps[-1] - start, len(stamps)):
                self.stamps = []
        if not samples or (self.drop_last and len(samples) < len(index)):
            raise StopIteration
        return samples

    def position(self) -> int:
        return len(self._samples)

    def state_dict(self) -> dict[str, Any]:
        """The position in the dataset, by the iterator's own account, by the dataset's, or by both."""
        state: dict[str, Any] = {}
        if saves(self._dataset) and self.iterator is not self._dataset:
            state["dataset"] = copy.deepcopy(self._dataset.state_dict())
        if saves(self.iterator):
            state["iterator"] = copy.deepcopy(self.iterator.state_dict())  # type: ignore[attr-defined]
        return state

    def _begin_again(self) -> None:
        """Look whether the dataset is at its end at once, and if so ask it for another epoch."""
        self._at_an_end = False
        first = list(islice(self._items, 1))
        if not first:
            self.iterator = iter(self._dataset)
            self._items = by_next(self.iterator)
        else:
            self._items = chain(first, self._items)

    def final_state(self) -> dict[str, Any]:
        """What the dataset keeps from one epoch to the next."""
        return {"dataset": copy.deepcopy(self._dataset.state_dict())} if saves(self._dataset) else {}


def saves(thing: object) -> bool:
    """Can it save its position?"""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def may_save(dataset: object) -> bool:
    """Can the dataset, or perhaps the iterators it makes, save their position? Generators cannot."""
    return saves(dataset) or not inspect.isgeneratorfunction(getattr(type(dataset), "__iter__", None))


def sample_count(auto_collation: bool, fetched: Any) -> int:
    """How many samples a fetcher's result holds."""
    if not auto_collation:
        return 1
    try:
        return len(fetched)
    except TypeError:
        return 1
