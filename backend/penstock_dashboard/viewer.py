"""What waits for one viewer: names of what has a latest state, and a bounded queue of events.

No IO here. The hub puts things in, the connection takes whole messages out whenever it can send. A viewer
that does not read costs its queue, and nothing else: of a frame or a loader's details only the name waits, since
what is sent is whatever is the latest then; and when the queue is full the oldest event goes and a gap is noted,
which is sent before the next event of that loader.

The order in which messages are taken is fair: one round is everything that was asked for, then each waiting
frame once, then some events, then commands, then the overview.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.json import encode
from penstock.insight.events import Telling, tell
from penstock.protocol import Event, Gap, Happened, Subscribe

from .store import EventRecord

EVENTS_PER_MESSAGE = 100
BYTES_PER_MESSAGE = 256 << 10

_HEAD = encode(Happened([]))[:-2]  # …"events":[

Text = Callable[[str], str | None]
"""From a loader to a message about it, as things stand; None if there is nothing to say any more."""


_event = msgspec.json.Decoder(Event)


def in_words(record: EventRecord) -> Telling:
    """What is said of an event; nothing of those that are drawn, and of those that only a later version knows."""
    if record.kind in ("spans", "profile", "quarantine"):
        return Telling()
    try:
        return tell(_event.decode(record.body))
    except msgspec.DecodeError:
        return Telling()


class LiveEvent:
    """An event, encoded once for all viewers."""

    __slots__ = ("encoded", "id", "loader")

    def __init__(self, record: EventRecord) -> None:
        self.id = record.id
        self.loader = record.loader
        said, loader = in_words(record), encode(record.loader)
        words = b',"text":%s,"tone":%s,"fold":%s,"same":%s}' % tuple(map(encode, said)) if said.text else b"}"
        self.encoded = b'{"id":%d,"loader":%s,"event":%s' % (record.id, loader, record.body) + words


def happened(events: list[LiveEvent]) -> str:
    return (_HEAD + b",".join(event.encoded for event in events) + b"]}").decode()


class EventQueue:
    """Events in order, up to a number and up to so many bytes; the last one always fits."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._events: deque[LiveEvent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, place: int) -> LiveEvent:
        return self._events[place]

    def append(self, event: LiveEvent) -> list[LiveEvent]:
        """Returns what had to go for it."""
        self._events.append(event)
        self._bytes += len(event.encoded)
        dropped = []
        while len(self._events) > self._most or (self._bytes > self._most_bytes and len(self._events) > 1):
            dropped.append(self.popleft())
        return dropped

    def popleft(self) -> LiveEvent:
        event = self._events.popleft()
        self._bytes -= len(event.encoded)
        return event

    def take(self, wanted: Callable[[LiveEvent], bool]) -> list[LiveEvent]:
        """Take out the events that are wanted."""
        taken = [event for event in self._events if wanted(event)]
        if taken:
            self._events = deque(event for event in self._events if not wanted(event))
            self._bytes -= sum(len(event.encoded) for event in taken)
        return taken


class Viewer:
    """What waits for one viewer."""

    def __init__(self, most_events: int, most_bytes: int = 1 << 20, most_commands: int = 8192) -> None:
        self.overview = False
        self.overview_seen = -1
        """Tick of the last overview it was sent; -1: none yet."""
        self.overview_due = False
        self.loaders: dict[str, int] = {}
        """Loader it watches → the last event that was sent to it, or dropped."""
        self.subscriptions = 0
        """How often it has said what it watches: what was read for an earlier wish is of no use."""
        self.dropped = 0
        """Events that it was too slow for."""
        self.hopeless = False
        """More commands wait for it than can be kept: it must come back."""
        self._most_commands = most_commands
        self._direct: dict[str, str] = {}
        """What it is about → the latest message."""
        self._frames: dict[str, None] = {}
        self._details: dict[str, None] = {}
        self._events = EventQueue(most_events, most_bytes)
        self._queued: dict[str, int] = {}
        """Loader → the last event of it that was put there."""
        self._placed: set[str] = set()
        """Loaders of which it is known how far the viewer has read: it said so."""
        self._reading: dict[str, int] = {}
        """Loaders whose past is being read → how often at once."""
        self._held = EventQueue(most_events, most_bytes)
        """Their events meanwhile."""
        self._gaps: dict[str, tuple[int, int]] = {}
        self._commands: dict[str, str] = {}

    # --------------------------------------------------------------------------------------------- filling

    def tell(self, about: str, message: str) -> None:
        """An answer, or news, of which only the latest is of interest."""
        self._direct[about] = message

    def frame(self, loader: str) -> None:
        self._frames[loader] = None

    def detail(self, loader: str) -> None:
        self._details[loader] = None

    def command(self, identifier: str, message: str) -> None:
        """The latest state of a command has all states before in it, so only the latest is kept."""
        self._commands[identifier] = message
        self.hopeless = len(self._commands) > self._most_commands

    def event(self, event: LiveEvent) -> None:
        if event.loader in self._reading:
            dropped = self._held.append(event)
        elif event.id > max(self.loaders[event.loader], self._queued.get(event.loader, 0)):
            dropped = self._queue(event)
        else:
            return
        for lost in dropped:
            self._drop(lost)

    def subscribe(self, wanted: Subscribe, newest: Mapping[str, int]) -> list[str]:
        """Change what it watches; returns the loaders whose past must now be read. `newest`: loader → the last event of
        it that viewers may have seen.
        """
        chosen = dict.fromkeys(wanted.loaders)
        self.subscriptions += 1
        self.overview = wanted.overview
        self.overview_seen = -1
        self.overview_due = wanted.overview
        self._direct = {about: text for about, text in self._direct.items() if ":" not in about or about in chosen}
        self._frames = {loader: None for loader in self._frames if loader in chosen}
        self._details = {loader: None for loader in self._details if loader in chosen}
        again = {loader for loader in wanted.after if loader in chosen}
        self._events.take(lambda event: event.loader not in chosen or event.loader in again)
        self._held.take(lambda _: True)
        self._gaps = {loader: gap for loader, gap in self._gaps.items() if loader in chosen and loader not in again}
        self._reading = dict.fromkeys(again, 1)
        self._queued = {loader: self._queued[loader] for loader in self._queued if loader in chosen.keys() - again}
        self._placed = {loader for loader in self._placed if loader in chosen} | again
        seen = self.loaders
        self.loaders = {loader: wanted.after.get(loader, seen.get(loader, newest.get(loader, 0))) for loader in chosen}
        return sorted(again)

    def reread(self, loader: str) -> int | None:
        """Events of a loader may have been stored that nobody told: they shall be read, from the last one on that was
        sent, which is returned. None: it is not known where the viewer is, so it has missed nothing.
        """
        if loader not in self.loaders or not (self.loaders[loader] or loader in self._placed):
            return None
        self._events.take(lambda event: event.loader == loader)  # they are stored, and come back
        self._queued.pop(loader, None)
        self._reading[loader] = self._reading.get(loader, 0) + 1
        return self.loaders[loader]

    def past(self, loader: str, events: list[LiveEvent], complete: bool) -> None:
        """The past of a loader has been read: it goes first, then what came meanwhile and is not in it."""
        if loader not in self._reading:
            return  # it was unsubscribed meanwhile
        self._reading[loader] -= 1
        meanwhile: list[LiveEvent] = []
        if not self._reading[loader]:
            del self._reading[loader]
            meanwhile = self._held.take(lambda event: event.loader == loader)
        after = self.loaders[loader]
        if not complete and events and events[0].id - 1 > after:
            self._gaps[loader] = (self._gaps.get(loader, (after, 0))[0], events[0].id - 1)
        # Two who read at once may have found the same.
        queued = self._events.take(lambda event: event.loader == loader)
        found = {event.id: event for event in (*queued, *events, *meanwhile) if event.id > after}
        for _, event in sorted(found.items()):
            for lost in self._queue(event):
                self._drop(lost)

    # -------------------------------------------------------------------------------------------- emptying

    def messages(self, frame: Text, detail: Text) -> Iterator[str]:
        """One round of what waits. What arrives while it is taken is part of this round or the next."""
        for about in list(self._direct):
            if (message := self._direct.pop(about, None)) is not None:
                yield message
        for names, text in ((self._details, detail), (self._frames, frame)):
            for loader in list(names):
                if loader in names:
                    del names[loader]
                    if (message := text(loader)) is not None:
                        yield message
        for loader in list(self._gaps):
            if (gap := self._gaps.pop(loader, None)) is not None:
                yield encode(Gap(loader, *gap)).decode()
        if events := self._some_events():
            yield happened(events)
        for identifier in list(self._commands):
            if (message := self._commands.pop(identifier, None)) is not None:
                yield message

    @property
    def empty(self) -> bool:
        return not (self._direct or self._frames or self._details or self._gaps or self._events or self._commands)

    def _some_events(self) -> list[LiveEvent]:
        taken: list[LiveEvent] = []
        size = 0
        while self._events and len(taken) < EVENTS_PER_MESSAGE and size < BYTES_PER_MESSAGE:
            if self._events[0].loader in self._gaps:
                break  # its gap must be told first
            event = self._events.popleft()
            size += len(event.encoded)
            taken.append(event)
            self.loaders[event.loader] = event.id
        return taken

    def _queue(self, event: LiveEvent) -> list[LiveEvent]:
        """Returns what had to go for it."""
        self._queued[event.loader] = event.id
        return self._events.append(event)

    def _drop(self, event: LiveEvent) -> None:
        self.dropped += 1
        after = self._gaps.get(event.loader, (self.loaders.get(event.loader, 0), 0))[0]
        self._gaps[event.loader] = (after, event.id)
        self.loaders[event.loader] = event.id
