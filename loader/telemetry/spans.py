"""Batch spans for the timeline.

While somebody watches, the iterating thread appends one tuple to a ring for every `stride`-th batch, and the publisher
takes them. The stride is 1 up to `RATE` batches a second and a power of two beyond, so that which batches are shown
depends on their number and not on how long they took, and a fast loader does not pay for pictures that nobody could
look at.
"""

from __future__ import annotations

from collections import deque

from ..protocol import Span, Spans

RATE = 250
"""Spans a second at the most, about."""
RING = 4096
LEAST_LOOK = 0.1
"""Seconds of which the rate is judged at the least."""


class SpanRing:
    def __init__(self) -> None:
        self.stride = 0
        """Batches with a multiple of it as their number are wanted. 0: nobody looks."""
        self._ring: deque[tuple[int, int, int, int, int, int, int, int]] = deque(maxlen=RING)
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

    def add(
        self, worker: int, epoch: int, batch: int, start: int, fetched: int, collated: int, sent: int, yielded: int
    ) -> None:
        """Moments are ns of the monotonic clock; -1: not come to."""
        if len(self._ring) == RING:
            self.lost += 1
        self._ring.append((worker, epoch, batch, start, fetched, collated, sent, yielded))

    def take(self, now: int, wall: float) -> Spans | None:
        """What was added since the last call. The same moment by the monotonic clock, ns, and in Unix time."""
        rows = []
        while self._ring:
            rows.append(self._ring.popleft())
        stride = self._choose_stride(len(rows), now)
        chosen = [row for row in rows if row[2] % stride == 0]
        if not chosen:
            return None
        first = min(row[3] for row in chosen)
        spans = [
            Span(
                worker,
                epoch,
                batch,
                (start - first) // 1000,
                (fetched - first) // 1000 if fetched >= 0 else -1,
                (collated - first) // 1000 if collated >= 0 else -1,
                (sent - first) // 1000,
                (yielded - first) // 1000,
            )
            for worker, epoch, batch, start, fetched, collated, sent, yielded in chosen
        ]
        return Spans(wall, wall - (now - first) / 1e9, spans, stride)

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
