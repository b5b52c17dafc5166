"""Batch spans for the timeline.

While somebody watches, the conductor adds one row to a ring for every `stride`-th batch that a worker has sent, the
iterating thread notes in it when the batch is yielded, and the publisher takes the rows. A batch that is ready long
before training wants it is told before that moment, since the timeline shows what workers do now, and once more when it
is yielded.

The stride is 1 up to `RATE` batches a second and a power of two beyond, so that which batches are shown depends on
their number and not on how long they took, and a fast loader does not pay for pictures that nobody could look at.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass

from ..pool.signals import emptied
from ..protocol import Span, Spans

RATE = 250
"""Spans a second at the most, about."""
RING = 4096
MOST_EARLY = 256
"""Batches that may be yielded before they are added."""
LEAST_LOOK = 0.1
"""Seconds of which the rate is judged at the least."""


Key = tuple[int, int, int]
"""Epoch, shard (-1: none), and the batch's number there."""


@dataclass(slots=True)
class _Row:
    key: Key
    """Which batch it is."""
    worker: int
    """Id of the worker that made it."""
    start: int
    """When the worker began with it, ns of the monotonic clock, like all moments here."""
    fetched: int
    """When all its samples were there."""
    collated: int
    """When it was a batch."""
    sent: int
    """When it was where training finds it."""
    yielded: int = -1
    """When training got it; -1: not yet."""
    taken: bool = False
    """It was told already."""

    def told(self, first: int) -> Span:
        """With moments in µs after `first`."""
        return Span(
            self.worker,
            self.key[0],
            self.key[2],
            (self.start - first) // 1000,
            (self.fetched - first) // 1000 if self.fetched >= 0 else -1,
            (self.collated - first) // 1000 if self.collated >= 0 else -1,
            (self.sent - first) // 1000,
            (self.yielded - first) // 1000 if self.yielded >= 0 else -1,
        )


class SpanRing:
    """The spans of the last batches, until somebody takes them."""

    def __init__(self) -> None:
        self.stride = 0
        """Batches with a multiple of it as their number are wanted. 0: nobody looks."""
        self._ring: deque[_Row] = deque(maxlen=RING)
        self._unyielded: dict[Key, _Row] = {}
        """The newest rows that were not yielded yet, be they in the ring or taken."""
        self._early: dict[Key, int] = {}
        """When batches were yielded that are still to be added: they were made before their epoch began."""
        self._late: deque[_Row] = deque(maxlen=RING)
        """Rows that were yielded after they had been taken."""
        self.lost = 0
        """Spans that nobody took in time."""
        self._judged = 0
        """When the stride was chosen last, ns of the monotonic clock."""
        self._added = 0
        """Spans added since then."""
        self._lost_before = 0

    def watch(self, now: int) -> None:
        """Somebody looks from now on."""
        self.stride = 1
        self._judged = now

    def add(self, key: Key, worker: int, start: int, fetched: int, collated: int, sent: int) -> None:
        """A batch has arrived. Moments are ns of the monotonic clock; -1: not come to."""
        with contextlib.suppress(IndexError, RuntimeError, StopIteration):  # another thread takes them at this moment
            if len(self._ring) == RING:
                self.lost += 1
                self._unyielded.pop(self._ring[0].key, None)
            if len(self._unyielded) >= RING:
                self._unyielded.pop(next(iter(self._unyielded)), None)
        row = _Row(key, worker, start, fetched, collated, sent)
        self._unyielded[key] = row
        if key in self._early and self._unyielded.pop(key, None) is not None:
            row.yielded = self._early.pop(key, -1)
        self._ring.append(row)

    def yielded(self, key: Key, now: int) -> None:
        row = self._unyielded.pop(key, None)
        if row is None:
            if len(self._early) >= MOST_EARLY:
                self._early.clear()
            self._early[key] = now
            row = self._unyielded.pop(key, None)  # added meanwhile, by one that may not have seen it
        if row is not None:
            self._early.pop(key, None)
            row.yielded = now
            if row.taken:  # looked at after it was noted, as `take` does it the other way round: one of them sees it
                self._late.append(row)

    def take(self, now: int, wall: float) -> Spans | None:
        """What was added since the last call. The same moment by the monotonic clock, ns, and in Unix time."""
        late, rows = emptied(self._late)[-RING:], emptied(self._ring)[-RING:]
        stride = self._choose_stride(len(rows), now)
        chosen = [row for row in rows if row.key[2] % stride == 0]
        for row in chosen:
            row.taken = True
        if not chosen and not late:
            return None
        first = min(row.start for row in (*chosen, *late))
        base = wall - (now - first) / 1e9
        return Spans(wall, base, [row.told(first) for row in chosen], stride, [row.told(first) for row in late])

    def _choose_stride(self, count: int, now: int) -> int:
        """The stride that these rows have, which also those to come are thinned to."""
        stride = max(self.stride, 1)
        self._added += count + self.lost - self._lost_before
        self._lost_before = self.lost
        seconds = (now - self._judged) / 1e9
        if seconds < LEAST_LOOK:
            return stride
        rate = self._added * stride / seconds
        most = min(RATE, RING / 2 / seconds)  # whoever comes seldom must find room for all
        self._judged, self._added = now, 0
        while rate > most * stride:
            stride *= 2
        fitting = stride
        while fitting > 1 and rate <= most * fitting * 0.4:  # not at once: at 0.5 it would go back and forth
            fitting //= 2
        if self.stride:
            self.stride = fitting
        return stride
