"""What waits for one viewer: the latest of everything that has a latest, and a bounded queue of events.

No IO here. The hub puts things in, the connection takes whole messages out whenever it can send. A viewer
that does not read costs its slots and its queue, and nothing else: frames replace each other, and when the
queue is full the oldest event goes and a gap is noted, which is sent before the next event of that loader.

The order in which messages are taken is fair: one round is everything that was asked for, then each waiting
frame once, then some events, then commands, then the overview.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec.json import encode
from penstock.protocol import Gap, Happened, Subscribe

from .store import EventRecord

EVENTS_PER_MESSAGE = 100
BYTES_PER_MESSAGE = 256 << 10

_HEAD = encode(Happened([]))[:-2]  # …"events":[


class LiveEvent:
    """An event, encoded once for all viewers."""

    __slots__ = ("encoded", "id", "loader")

    def __init__(self, record: EventRecord) -> None:
        self.id = record.id
        self.loader = record.loader
        self.encoded = b'{"id":%d,"loader":%s,"event":%s}' % (record.id, encode(record.loader), record.body)


def happened(events: list[LiveEvent]) -> str:
    return (_HEAD + b",".join(event.encoded for event in events) + b"]}").decode()


class Viewer:
    def __init__(self, most_events: int) -> None:
        self.overview = False
        self.overview_seen = -1
        """Tick of the last overview it was sent; -1: none yet."""
        self.overview_due = False
        self.loaders: dict[str, int] = {}
        """Loader it watches → the last event that was sent to it, or dropped."""
        self.dropped = 0
        """Events that it was too slow for."""
        self._most_events = most_events
        self._direct: deque[str] = deque()
        self._frames: dict[str, str] = {}
        self._details: dict[str, str] = {}
        self._events: deque[LiveEvent] = deque()
        self._held: dict[str, list[LiveEvent]] = {}
        """Loader whose past is being read → its events meanwhile."""
        self._gaps: dict[str, tuple[int, int]] = {}
        self._commands: dict[str, str] = {}

    # --------------------------------------------------------------------------------------------- filling

    def tell(self, message: str) -> None:
        """An answer to something the viewer asked."""
        self._direct.append(message)

    def frame(self, loader: str, message: str) -> None:
        self._frames[loader] = message

    def detail(self, loader: str, message: str) -> None:
        self._details[loader] = message

    def command(self, identifier: str, message: str) -> None:
        """The latest state of a command has all states before in it, so only the latest is kept."""
        self._commands[identifier] = message

    def event(self, event: LiveEvent) -> None:
        if event.loader in self._held:
            held = self._held[event.loader]
            held.append(event)
            if len(held) > self._most_events:
                self._drop(held.pop(0))
            return
        if event.id <= self.loaders[event.loader]:
            return
        self._events.append(event)
        if len(self._events) > self._most_events:
            self._drop(self._events.popleft())

    def subscribe(self, wanted: Subscribe, newest_event: int) -> list[str]:
        """Change what it watches; returns the loaders whose past must now be read."""
        chosen = dict.fromkeys(wanted.loaders)
        self.overview = wanted.overview
        self.overview_seen = -1
        self.overview_due = wanted.overview
        self._frames = {loader: frame for loader, frame in self._frames.items() if loader in chosen}
        self._details = {loader: detail for loader, detail in self._details.items() if loader in chosen}
        again = {loader for loader in wanted.after if loader in chosen}
        self._events = deque(e for e in self._events if e.loader in chosen and e.loader not in again)
        self._gaps = {loader: gap for loader, gap in self._gaps.items() if loader in chosen and loader not in again}
        self._held = {loader: [] for loader in again}
        self.loaders = {loader: wanted.after.get(loader, self.loaders.get(loader, newest_event)) for loader in chosen}
        return sorted(again)

    def past(self, loader: str, events: list[LiveEvent], complete: bool) -> None:
        """The past of a loader has been read: it goes first, then what came meanwhile and is not in it."""
        if loader not in self._held:
            return  # it was unsubscribed meanwhile
        after = self.loaders[loader]
        if not complete and events:
            self._gaps[loader] = (after, events[0].id - 1)
        meanwhile = self._held.pop(loader)
        last = events[-1].id if events else after
        self._events.extend(events)
        for event in meanwhile:
            if event.id > last:
                self._events.append(event)
        while len(self._events) > self._most_events:
            self._drop(self._events.popleft())

    # -------------------------------------------------------------------------------------------- emptying

    def messages(self) -> Iterator[str]:
        """One round of what waits. What arrives while it is taken is part of this round or the next."""
        while self._direct:
            yield self._direct.popleft()
        for loader in list(self._details):
            if (message := self._details.pop(loader, None)) is not None:
                yield message
        for loader in list(self._frames):
            if (message := self._frames.pop(loader, None)) is not None:
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

    def _drop(self, event: LiveEvent) -> None:
        self.dropped += 1
        after = self._gaps.get(event.loader, (self.loaders.get(event.loader, 0), 0))[0]
        self._gaps[event.loader] = (after, event.id)
        self.loaders[event.loader] = event.id
