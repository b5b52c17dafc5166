"""The inbox: where the conductor sleeps, and where crews put their reports."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from .crews.reports import Report
from .signals import Doorbell, emptied


class HasDescriptor(Protocol):
    """Anything that can be polled."""

    def fileno(self) -> int: ...


class Inbox:
    """Only the conductor's thread touches it, but for `put` with `ring`, and `doorbell.ring`."""

    def __init__(self) -> None:
        self.doorbell = Doorbell()
        self._reports: deque[Report] = deque()
        self._poll = select.poll()
        self._poll.register(self.doorbell, select.POLLIN)
        self._watched: dict[int, Callable[[int], None]] = {}
        self._timed: list[tuple[float, float, Callable[[], None]]] = []
        """When each call is due, s of the monotonic clock; how often; and the call."""

    def put(self, report: Report, *, ring: bool = False) -> None:
        """Leave a report; whoever does so from another thread rings."""
        self._reports.append(report)
        if ring:
            self.doorbell.ring()

    def watch(self, thing: HasDescriptor, hear: Callable[[int], None]) -> None:
        """Call `hear`, with the events, whenever there is something to read, or an end, or room if that is wanted."""
        self._watched[thing.fileno()] = hear
        self._poll.register(thing, select.POLLIN)

    def want_room(self, thing: HasDescriptor, wanted: bool) -> None:
        """Call it when there is room to write, too, or no longer."""
        self._poll.modify(thing, select.POLLIN | (select.POLLOUT if wanted else 0))

    def unwatch(self, thing: HasDescriptor) -> None:
        """Before it is closed."""
        self._poll.unregister(thing)
        del self._watched[thing.fileno()]

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this every so many seconds, while somebody waits."""
        self._timed.append((time.monotonic() + seconds, seconds, call))

    def wait(self, milliseconds: float | None) -> list[Report]:
        """Sleep until something happens, for so long at the most; return what was reported."""
        if self._timed:
            due = max((min(each[0] for each in self._timed) - time.monotonic()) * 1000 + 1, 0.0)
            milliseconds = due if milliseconds is None else min(milliseconds, due)
        for descriptor, events in self._poll.poll(milliseconds):
            hear = self._watched.get(descriptor)
            if hear is not None:
                hear(events)
            elif descriptor == self.doorbell.fileno():
                self.doorbell.clear()
        if self._timed:
            self._call_timed(time.monotonic())
        return emptied(self._reports)

    def _call_timed(self, now: float) -> None:
        for number, (due, seconds, call) in enumerate(self._timed):
            if now >= due:
                self._timed[number] = (now + seconds, seconds, call)
                call()

    def close(self) -> None:
        self.doorbell.close()
