"""Bad samples on their way to the dashboard: each is told once, and all of them are, unlike errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from msgspec import structs

from ..protocol import Quarantined, QuarantineEvent

AT_A_TIME = 500
"""In one event."""
MOST = 100_000
"""Kept for the publisher; on overflow the oldest goes."""
LONG = 256
"""Characters of an error; of a longer one the beginning is told."""


def in_brief(sample: Quarantined) -> Quarantined:
    """Without what is long."""
    return structs.replace(sample, traceback="", error=sample.error[:LONG])


class BadSamples:
    """The iterating thread adds, the publisher's takes."""

    def __init__(self) -> None:
        self._found: deque[Quarantined] = deque(maxlen=MOST)

    def add(self, sample: Quarantined) -> None:
        self._found.append(sample)

    def take(self) -> Iterator[QuarantineEvent]:
        """What was added since the last call, oldest first."""
        while self._found:
            some = [in_brief(self._found.popleft()) for _ in range(min(AT_A_TIME, len(self._found)))]
            yield QuarantineEvent(time.time(), some)
