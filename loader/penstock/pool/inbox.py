"""The inbox: where the conductor sleeps, and where crews put their reports."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Protocol

from .crews.reports import Report
from .signals import Doorbell, emptied


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class Inbox:
    """Only the conductor's thread touches it, but for `put` with `ring`, and `doorbell.ring`."""

    def __init__(self) -> None:
        self.doorbell = Doorbell()
        self._reports: deque[Report] = deque()
        self._poll = select.poll()
        self._poll.register(self.doorbell, select.POLLIN)
        self._watched: dict[int, Callable[[int], None]] = {}

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

    def wait(self, milliseconds: float | None) -> list[Report]:
        """Sleep until something happens, for so long at the most; return what was reported."""
        for descriptor, events in self._poll.poll(milliseconds):
            hear = self._watched.get(descriptor)
            if hear is not None:
                hear(events)
            elif descriptor == self.doorbell.fileno():
                self.doorbell.clear()
        return emptied(self._reports)

    def close(self) -> None:
        self.doorbell.close()
