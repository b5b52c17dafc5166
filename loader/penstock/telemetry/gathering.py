"""From a source to the outbox: snapshots, events and the goodbye, encoded and within the size of a message."""

from __future__ import annotations

import msgspec

from ..protocol import MAX_MESSAGE, Between, Event, Events, Goodbye, Published, Snapshot
from .complaints import Complaints
from .outbox import Outbox
from .pace import Extremes, Pacer
from .source import Source

MOST_EVENTS = 1024
"""In one message, as the protocol has it."""


class Gatherer:
    """Puts what a source says into the outbox, encoded and numbered."""

    def __init__(self, source: Source, outbox: Outbox, tell: Complaints, pacer: Pacer) -> None:
        self._source = source
        self._outbox = outbox
        self._tell = tell
        self._pacer = pacer
        self._extremes: Extremes | None = None
        """While the pace is slower than the looks."""
        self._encoder = msgspec.msgpack.Encoder()

    def look(self, now: float, last: bool = False) -> None:
        """Look at the source, and publish what is seen if it is time; `last`: in any case."""
        try:
            snapshot = self._source.snapshot(self._outbox.next_seq)
            due = self._pacer.due(snapshot, now)
            between = self._between(snapshot, due or last)
            if not due and not last:
                return
            if self._outbox.dropped:
                snapshot = msgspec.structs.replace(snapshot, dropped=snapshot.dropped + self._outbox.dropped)
            if between is not None:
                snapshot = msgspec.structs.replace(snapshot, between=between)
            data = self._encoder.encode(Published.of(snapshot))
        except Exception as error:
            self._tell("snapshot", "no snapshot could be taken: %r", error)
            return
        if len(data) <= MAX_MESSAGE:
            self._outbox.add(data)
        else:
            self._tell("size", "a snapshot of %d bytes is too large to be published", len(data))

    def _between(self, snapshot: Snapshot, published: bool) -> Between | None:
        """What goes with a snapshot of the looks before it. At full pace every look is a snapshot: nothing."""
        if self._extremes is None:
            if not self._pacer.slow:
                return None
            self._extremes = Extremes()
        self._extremes.add(snapshot)
        if not published:
            return None
        between = self._extremes.take()
        if not self._pacer.slow:
            self._extremes = None
        return between

    def add_events(self) -> None:
        try:
            events = self._source.take_events()
        except Exception as error:
            self._tell("events", "events could not be taken: %r", error)
            return
        for start in range(0, len(events), MOST_EVENTS):
            self._add_some(events[start : start + MOST_EVENTS])

    def load(self) -> bytes | None:
        """What replay needs to know, encoded. It goes at once or not at all: the next one says the same."""
        try:
            load = self._source.load()
            return None if load is None else self._encoder.encode(load)
        except Exception as error:
            self._tell("load", "what batches need could not be told: %r", error)
            return None

    def add_goodbye(self) -> int:
        """Returns its number."""
        return self._outbox.add(self._encoder.encode(Goodbye(self._outbox.next_seq)))

    def _add_some(self, events: list[Event]) -> None:
        """As one message, or as more if it were too large, or if one event cannot be sent."""
        try:
            data = self._encoder.encode(Events(self._outbox.next_seq, events))
            problem = "" if len(data) <= MAX_MESSAGE else f"it has {len(data)} bytes"
        except Exception as error:
            problem = repr(error)
        if not problem:
            self._outbox.add(data)
        elif len(events) > 1:
            self._add_some(events[: len(events) // 2])
            self._add_some(events[len(events) // 2 :])
        else:
            self._outbox.dropped += 1
            self._tell("event", "an event cannot be published: %s", problem)
