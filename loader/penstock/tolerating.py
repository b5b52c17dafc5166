"""Bad samples: an epoch goes on without them, or with others in their place.

A worker that fails to make a sample tries it again, and then leaves it out (`skip`) or puts another in its place
(`replace`), and tells training with the batch. What a batch is made of depends on nothing but seed, epoch, batch and
which samples are bad:

1. The sample that takes a bad one's place is chosen by (base seed, epoch, batch, place in the batch, attempt).
2. After a bad sample the random generators are seeded anew, by batch and place: it does not matter how far it came, or
   whether it was tried at all because it was known to be bad.

So the batches are the same for every number of workers, with persistent ones that learned of a bad sample and new ones
that were told, and after a resume.
"""

from __future__ import annotations

import operator
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from .fetching import IterableFetcher
from .sampling.passes import goes_on
from .seeding import Seeder
from .taking import by_signal_handler

ATTEMPTS = 32
"""How many samples are tried in the place of a bad one."""
IN_A_ROW = 1000
"""How many errors in a row an iterator may raise before its stream is given up."""

_COORDINATES = struct.Struct("<QQQQQ")
_MASK = (1 << 64) - 1
_clock = time.monotonic_ns


class Nothing:
    """In place of a batch of which nothing is left. Training does not see it."""

    def __reduce__(self) -> Any:
        return _nothing, ()


NOTHING = Nothing()


def _nothing() -> Nothing:
    return NOTHING


class Bad(NamedTuple):
    """One that failed, as a worker tells of it."""

    index: Any
    """The sample's index; None: of a stream, or a whole batch."""
    where: Literal["dataset", "collate_fn"]
    error: str
    """Type and message."""
    traceback: str
    times: int
    """How often it was tried; 0: not at all, because it was known to be bad."""
    fatal: bool = False
    """Workers hung or died there: it is not to be tried by any."""
    stand_in: bool = False
    """It was to take a bad one's place: the batch itself did not ask for it."""


def attempted(place: int, attempt: int) -> int:
    """The number that stands for a place in a batch while another sample is tried there."""
    return place | (attempt + 1) << 32


class Without(NamedTuple):
    """The indices of a batch of which some samples are not to be tried: workers hung or died there."""

    indices: Any
    places: dict[int, Bad]
    """Places in the batch, or `attempted` ones."""


@dataclass(slots=True)
class Tolerance:
    """What a loader was told to do about bad samples."""

    replace: bool
    """Put another sample into the place of a bad one."""
    retries: int
    """How often a sample is tried again."""
    known: set[Any]
    """Indices that are known to be bad."""
    length: int | None
    """Every index below it may take the place of a bad one; None: only others of the batch may."""

    def bad(self, index: Any, where: Literal["dataset", "collate_fn"], error: Exception, times: int) -> Bad:
        text = "".join(traceback.format_exception(error))
        return Bad(index, where, f"{type(error).__name__}: {error}"[:1000], text[-8000:], times)


class TolerantFetcher:
    """Fetches the samples of a map-style dataset, and of a batch that fails those that do not."""

    by_index = True
    surprise = 0

    def __init__(self, dataset: Any, auto_collation: bool, tolerance: Tolerance, base_seed: int) -> None:
        self._dataset = dataset
        self._auto_collation = auto_collation
        self._tolerance = tolerance
        self._base_seed = base_seed
        self._whole = getattr(dataset, "__getitems__", None) if auto_collation else None
        self.epoch = 0
        self.batch = 0
        self.seeder: Seeder | None = None
        """Seeds the random generators after a bad sample; None: they are training's own."""
        self.mark: Callable[[int, int], None] | None = None
        """Told which sample is being made and since when, so that it can be blamed."""
        self.without: dict[int, Bad] = {}
        """Places in the next batch that are not to be tried."""
        self.stamps: list[int] = []
        self.began = self.together = 0
        self.bad: list[Bad] = []
        """Of the batch that was fetched last."""
        self._position = 0

    def position(self) -> int:
        return self._position

    def fetch(self, index: Any) -> Any:
        """The samples of a batch, without or instead of bad ones; without automatic batching one, or NOTHING."""
        self.bad, self.stamps, self._position, self.together = [], [], 0, 0
        self.began = _clock()
        if not self._auto_collation:
            samples = self._each([index])
            return samples[0] if samples else NOTHING
        keys = list(index)
        if self._whole is not None and not self.without and self._tolerance.known.isdisjoint(map(named, keys)):
            try:
                whole = self._whole(keys)
            except Exception as error:
                if by_signal_handler(error):
                    raise
                self._seed_anew(len(keys))
            else:
                taken, size = _clock() - self.began, len(keys)
                self.stamps = [self.began + taken * (each + 1) // size for each in range(size)]
                self.together = size
                return whole
        return self._each(keys)

    def _each(self, keys: list[Any]) -> list[Any]:
        dataset, known, stamp, clock = self._dataset, self._tolerance.known, self.stamps.append, _clock
        samples: list[Any] = []
        mark, without, now = self.mark, self.without, self.began
        for place, key in enumerate(keys):
            self._position = place
            try:
                if (without and place in without) or (known and named(key) in known):
                    self.bad.append(without.get(place) or Bad(key, "dataset", "", "", 0))
                    self._other(place, keys, samples)
                else:
                    if mark is not None:
                        mark(place, now)
                    samples.append(dataset[key])
            except Exception as error:
                if by_signal_handler(error):
                    raise
                self._again(error, place, keys, samples)
            now = clock()
            stamp(now)
        if mark is not None:
            mark(-1, now)
        return samples

    def _again(self, error: Exception, place: int, keys: list[Any], samples: list[Any]) -> None:
        """A sample has failed: try it again, and then do without."""
        key, tolerance = keys[place], self._tolerance
        for _ in range(tolerance.retries):
            self._seed_anew(place)
            if self.mark is not None:
                self.mark(place, _clock())
            try:
                samples.append(self._dataset[key])
                return
            except Exception as another:
                if by_signal_handler(another):
                    raise
                error = another
        self.bad.append(tolerance.bad(key, "dataset", error, 1 + tolerance.retries))
        tolerance.known.add(named(key))
        self._other(place, keys, samples)

    def _other(self, place: int, keys: list[Any], samples: list[Any]) -> None:
        """Put another sample into the place of a bad one, if that is wanted and there is one."""
        self._seed_anew(place)
        if not self._tolerance.replace:
            return
        bad = {named(each.index) for each in self.bad}
        for attempt in range(ATTEMPTS):
            key = self._chosen(place, attempt, keys)
            if named(key) in self._tolerance.known or named(key) in bad:
                continue
            number = attempted(place, attempt)
            if number in self.without:
                self.bad.append(self.without[number]._replace(index=key, stand_in=True))
                continue
            if self.mark is not None:
                self.mark(number, _clock())
            try:
                samples.append(self._dataset[key])
                return
            except Exception as error:
                if by_signal_handler(error):
                    raise
                self._seed_anew(place)

    def _chosen(self, place: int, attempt: int, keys: list[Any]) -> Any:
        coordinates = (self._base_seed, self.epoch, self.batch, place, attempt)
        digest = blake2b(_COORDINATES.pack(*(each & _MASK for each in coordinates)), digest_size=8).digest()
        number, length = int.from_bytes(digest, "little"), self._tolerance.length
        return keys[number % len(keys)] if length is None else number % length

    def _seed_anew(self, place: int) -> None:
        if self.seeder is not None:
            self.seeder.seed(-1 - (self.batch << 20) - place)


class TolerantStream(IterableFetcher):
    """Fetches from an iterable-style dataset whose iterator may raise, and goes on behind that if it can."""

    def __init__(self, tolerance: Tolerance, *arguments: Any, **options: Any) -> None:
        self._tolerance = tolerance
        self.bad: list[Bad] = []
        """Of the batch that was fetched last."""
        super().__init__(*arguments, **options)
        self._items = _Tolerated(self.iterator, self)

    def fetch(self, index: Any) -> Any:
        self.bad = []
        return super().fetch(index)

    def _begin_again(self) -> None:
        before = self.iterator
        super()._begin_again()
        if self.iterator is not before:
            self._items = _Tolerated(self.iterator, self)

    def _bear(self, error: Exception, in_a_row: int) -> None:
        """The iterator has raised: note it, or raise it again if there is no going on."""
        if by_signal_handler(error):
            raise error
        gone = not goes_on(self.iterator)
        if gone or in_a_row > IN_A_ROW:
            reason = "is a generator, which an error ends" if gone else "raises at every item"
            error.add_note(f"on_error cannot go on with this stream: its iterator {reason}.")
            raise error
        self.bad.append(self._tolerance.bad(None, "dataset", error, 1))


class _Tolerated(Iterator[Any]):
    """The items of an iterator, without those in place of which it raises."""

    def __init__(self, iterator: Iterator[Any], stream: TolerantStream) -> None:
        self._iterator = iterator
        self._stream = stream

    def __next__(self) -> Any:
        in_a_row = 0
        while True:
            try:
                return next(self._iterator)
            except StopIteration:
                raise
            except Exception as error:
                in_a_row += 1
                self._stream._bear(error, in_a_row)


def named(index: Any) -> int | str:
    """What an index is called where bad ones are kept: numbers and texts as they are, else what it looks like."""
    if isinstance(index, int | str):
        return index
    try:
        return operator.index(index)
    except TypeError:
        return repr(index)
