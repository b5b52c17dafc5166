"""Batch spans for the timeline.

While somebody watches, the iterating thread appends one tuple a batch to a ring. The publisher takes them: all of them
at low rates; at high rates those whose batch index is a multiple of a power of two, so that which batches are shown
does not depend on how long they took.
"""

from __future__ import annotations

import time
from collections import deque

from ..protocol import Span, Spans

MOST = 200
"""Spans handed out at a time at the most."""
RING = 4096


class SpanRing:
    def __init__(self) -> None:
        self.watched = False
        """Nobody looks: nothing is kept."""
        self._ring: deque[tuple[int, int, int, int, int, int, int, int]] = deque(maxlen=RING)

    def add(
        self, worker: int, epoch: int, batch: int, start: int, fetched: int, collated: int, sent: int, yielded: int
    ) -> None:
        """Moments are ns of the monotonic clock."""
        self._ring.append((worker, epoch, batch, start, fetched, collated, sent, yielded))

    def take(self) -> Spans | None:
        rows = []
        while self._ring:
            rows.append(self._ring.popleft())
        if not rows:
            return None
        stride = 1
        while len(rows) > MOST * stride:
            stride *= 2
        chosen = [row for row in rows if row[2] % stride == 0][:MOST]
        if not chosen:
            chosen = rows[:1]
        now, monotonic = time.time(), time.monotonic_ns()
        first = min(row[3] for row in chosen)
        spans = [
            Span(row[0], row[1], row[2], *(max(moment - first, 0) // 1000 for moment in row[3:])) for row in chosen
        ]
        return Spans(now, now - (monotonic - first) / 1e9, spans, stride)
