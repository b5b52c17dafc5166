"""Other replicas on the same store: what is connected there is shown here, and what is asked here is done there.

1. The store is the truth; this only says what is fleeting, and where to look. A replica that hears nothing of others
   loses sight of them, and nothing else.
2. Who comes and goes is told to all. Frames, details, rows and events go only to replicas where somebody looks at them:
   each says once a second what is looked at (`Alive`), and at once when that changes.
3. A command is stored where it is given; the replica that has the loader is told to look (`Ordered`), answers with what
   has become of it (`Moved`), and moves it from then on. It is told again when it says that it has the loader.
4. A replica that is silent for `GONE` seconds is gone: its loaders are stale, and lost if no other has them soon.
5. What the bus did not carry, because a replica was killed in that moment, is found in the store (`inherited.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from penstock.protocol import Alert, Load, LoaderDetail, LoaderRow

from .bus import Bus
from .bus.messages import (
    Alerted,
    Alive,
    Answer,
    AnyMessage,
    Ask,
    Forgotten,
    Known,
    KnownLoader,
    Message,
    Moved,
    Ordered,
    Places,
    Rows,
    Shown,
    SignedOut,
    Told,
)
from .inherited import Inherited
from .registry import Entry
from .store import CommandStored, EventRecord, RunPlace

if TYPE_CHECKING:
    from .core import Backend

GONE = 5.0
"""Seconds of silence after which a replica is gone."""
AT_ONCE = 200
"""Loaders or rows in one message."""
ANSWER = 3.0
"""Seconds that an answer may take."""

_decoder = msgspec.msgpack.Decoder(AnyMessage)
_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.json.Decoder(LoaderRow)


class Peer(msgspec.Struct):
    """Another replica."""

    heard: float
    """On the monotonic clock."""
    watching: frozenset[str] = frozenset()
    overview: bool = False
    met: bool = False
    """It has said that it is there; before that it may be heard to speak of something else."""


class Replicas:
    """The other replicas, seen from this one."""

    def __init__(self, backend: Backend, bus: Bus) -> None:
        self.bus = bus
        self.on_signed_out: Callable[[str], None] = lambda _session: None
        self.share = (0, 1)
        """This replica's place among all, and how many there are."""
        self._backend = backend
        self._name = backend.instance
        self._peers: dict[str, Peer] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self.inherited = Inherited(backend, lambda stored, to: self._send(Moved(self._name, stored), to))
        self._learning = False
        """What changes now was learnt from another replica: it need not be told."""

    async def start(self) -> None:
        self.bus.on_message = self._take
        self.bus.on_restored = self._restored
        await self.bus.start(self._name, self._backend.store.identity)
        self._tell_alive(new=True)

    def _restored(self) -> None:
        """What was told before may not have been heard, here and by others."""
        self._tell_alive(new=True)
        self._tell_places(self._backend.registry.places)
        self._tell_alerts(*self._backend.lookout.known)

    async def stop(self) -> None:
        self.inherited.stop()
        self._send(Alive(self._name, leaving=True))
        await self.bus.stop()

    def beat(self) -> None:
        """Once a second."""
        now = time.monotonic()
        for name, peer in list(self._peers.items()):
            if now - peer.heard > GONE:
                self._gone(name)
        self._tell_alive()

    # ----------------------------------------------------------------------------------------- what is told

    def watched(self, loader: str) -> bool:
        """Whether somebody at another replica looks at this loader."""
        return any(loader in peer.watching for peer in self._peers.values())

    @property
    def overview(self) -> bool:
        """Whether somebody at another replica looks at the overview."""
        return any(peer.overview for peer in self._peers.values())

    def watching_changed(self) -> None:
        if self._peers:
            self._tell_alive()

    def changed(self, entry: Entry) -> None:
        """A loader's presence or configuration has changed."""
        if self._peers and not self._learning and not entry.replica:
            self.tell(entry)
            self._show(entry, detail=True)

    def tell(self, entry: Entry) -> None:
        """What others must know of a loader that is here has changed."""
        if self._peers:
            self._send(Known(self._name, [self._known(entry)]))

    def in_charge(self, entry: Entry) -> bool:
        """Whether this replica is the one that looks after a loader: the one that has it, or had it last, or, if that
        is gone, one of the others. Without the bus it is not known who is gone, or where the loader is.
        """
        if entry.here or entry.replica:
            return entry.here
        if entry.home == self._name or entry.home in self._peers:
            return entry.home == self._name
        place, places = self.share
        return not self.bus.warning and entry.key % places == place

    def alerted(self, alerts: list[Alert], problems: list[str]) -> None:
        if self._peers:
            self._tell_alerts(alerts, problems)

    def frame(self, loader: str, text: str) -> None:
        for name, peer in self._peers.items():
            if loader in peer.watching:
                self._send(Shown(self._name, loader, frame=text), name)

    def rows(self, rows: list[bytes], to: str = "") -> None:
        """Rows of loaders that are connected here."""
        for name, peer in self._peers.items():
            if name == to or (not to and peer.overview):
                for first in range(0, len(rows), AT_ONCE):
                    self._send(Rows(self._name, rows[first : first + AT_ONCE]), name)

    def events(self, records: list[EventRecord]) -> None:
        for name, peer in self._peers.items():
            told = [record for record in records if record.loader in peer.watching]
            if told:
                self._send(Told(self._name, told), name)

    def ordered(self, entry: Entry, command: str) -> None:
        """A command for a loader at another replica is stored."""
        if entry.replica:
            self._send(Ordered(self._name, command), entry.replica)

    def moved(self, stored: CommandStored) -> None:
        if self._peers and not self._learning:
            self._send(Moved(self._name, stored))

    def place(self, place: RunPlace) -> None:
        """Somebody here gave a run a place: its loaders have it at once, here and everywhere."""
        self._learnt(lambda: self._put(place))
        self._tell_places([place])

    def forgotten(self, entry: Entry) -> None:
        if self._peers and not self._learning:
            self._send(Forgotten(self._name, entry.id, entry.key))

    def signed_out(self, session: str) -> None:
        self._send(SignedOut(self._name, session))

    def _tell_alive(self, new: bool = False) -> None:
        hub = self._backend.hub
        self._send(Alive(self._name, hub.watching, hub.wants_overview, new))

    def _tell_alerts(self, alerts: list[Alert], problems: list[str], to: str = "") -> None:
        for first in range(0, max(1, len(alerts)), AT_ONCE):
            self._send(Alerted(self._name, alerts[first : first + AT_ONCE], problems), to)

    def _tell_places(self, places: list[RunPlace], to: str = "") -> None:
        for first in range(0, len(places), AT_ONCE):
            self._send(Places(self._name, places[first : first + AT_ONCE]), to)

    def _show(self, entry: Entry, detail: bool = False) -> None:
        """The latest of a loader, to those who look at it."""
        hub = self._backend.hub
        for name, peer in self._peers.items():
            if entry.id in peer.watching:
                frame = "" if detail else hub.frame(entry.id) or ""
                self._send(Shown(self._name, entry.id, frame, hub.detail(entry.id) or ""), name)

    def _known(self, entry: Entry) -> KnownLoader:
        hello, place = msgspec.msgpack.encode(entry.hello), self._backend.registry.place_of(entry.run)
        about = entry.presence, entry.seen, place.place, place.number, entry.state, entry.lived
        return KnownLoader(entry.key, entry.owner, entry.claim, hello, *about, entry.here)

    def _send(self, message: Message, to: str = "") -> None:
        self.bus.send(_encoder.encode(message), to)

    # --------------------------------------------------------------------------------------------- questions

    async def update_rows(self) -> None:
        """Ask everybody for the rows of their loaders, so that all are of this moment."""
        for body in await asyncio.gather(*(self._ask(name, "rows") for name in self._peers)):
            if body:
                self._learn_rows(msgspec.json.decode(body, type=list[LoaderRow]))

    async def detail(self, entry: Entry) -> LoaderDetail:
        body = await self._ask(entry.replica, "detail", entry.id) if entry.replica else b""
        return msgspec.json.decode(body, type=LoaderDetail) if body else entry.detail()

    async def load(self, entry: Entry) -> Load | None:
        body = await self._ask(entry.replica, "load", entry.id) if entry.replica else b""
        return msgspec.msgpack.decode(body, type=Load) if body else entry.load

    async def _ask(self, replica: str, what: str, loader: str = "") -> bytes:
        """Empty: there is no answer."""
        number = next(self._numbers)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._send(Ask(self._name, number, what, loader), replica)
        try:
            async with asyncio.timeout(ANSWER):
                return await future
        except TimeoutError:
            return b""
        finally:
            del self._asked[number]

    def _answer(self, ask: Ask) -> None:
        body, entry = b"", self._backend.registry.get(ask.loader)
        if ask.what == "rows":
            body = msgspec.json.encode([entry.row() for entry in self._backend.registry if entry.here])
        elif entry is not None and ask.what == "detail":
            body = msgspec.json.encode(entry.detail())
        elif entry is not None and entry.load is not None:
            body = msgspec.msgpack.encode(entry.load)
        self._send(Answer(self._name, ask.number, body), ask.sender)

    # ---------------------------------------------------------------------------------------- what is heard

    def _take(self, data: bytes) -> None:
        message = _decoder.decode(data)
        if message.sender == self._name:
            return
        if isinstance(message, Alive):
            self._alive(message)
            return
        if message.sender not in self._peers:
            self._peers[message.sender] = Peer(0.0)
            self._count()
        self._peers[message.sender].heard = time.monotonic()
        hub, registry = self._backend.hub, self._backend.registry
        if isinstance(message, Known):
            self._learnt(lambda: self._learn(message))
        elif isinstance(message, Places):
            self._learnt(lambda: self._learn_places(message.places, message.sender))
        elif isinstance(message, Alerted):
            self._backend.lookout.hear(message.sender, message.alerts, message.problems)
        elif isinstance(message, Rows):
            self._learn_rows([_rows.decode(row) for row in message.rows])
        elif isinstance(message, Shown):
            entry = registry.get(message.loader)
            if entry is not None and entry.replica == message.sender:
                hub.shown(entry, message.frame, message.detail)
                if message.detail:
                    self.inherited.catch_up(entry)
        elif isinstance(message, Told):
            hub.events(message.events)
        elif isinstance(message, Ordered):
            self.inherited.ordered(message)
        elif isinstance(message, Moved):
            self._learnt(lambda: self._backend.commands.learn(message.stored))
        elif isinstance(message, Forgotten):
            entry = registry.get(message.loader)
            if entry is not None and entry.key == message.key and not entry.here:
                self._learnt(lambda: registry.drop(entry))
        elif isinstance(message, SignedOut):
            self.on_signed_out(message.session)
        elif isinstance(message, Ask):
            self._answer(message)
        elif (future := self._asked.get(message.number)) is not None and not future.done():
            future.set_result(message.body)

    def _alive(self, alive: Alive) -> None:
        if alive.leaving:
            self._gone(alive.sender)
            return
        before = self._peers.get(alive.sender)
        before = before if before is not None and before.met else None
        watching = frozenset(alive.watching)
        self._peers[alive.sender] = Peer(time.monotonic(), watching, alive.overview, met=True)
        if before is None or alive.new:
            self._count()
            here = [entry for entry in self._backend.registry if entry.here]
            for first in range(0, len(here), AT_ONCE):
                self._send(Known(self._name, [self._known(one) for one in here[first : first + AT_ONCE]]), alive.sender)
            self._tell_places(self._backend.registry.places, alive.sender)
            self._tell_alerts(*self._backend.lookout.known, alive.sender)
            if before is None:
                self._tell_alive()
        fresh = watching - (before.watching if before is not None and not alive.new else frozenset())
        mine = [entry for loader in fresh if (entry := self._backend.registry.get(loader)) and entry.here]
        for entry in mine:
            self._show(entry)
        self._backend.set_paces(entry.id for entry in mine)
        if alive.overview and (before is None or not before.overview or alive.new):
            rows = [msgspec.json.encode(entry.row()) for entry in self._backend.registry if entry.here]
            self.rows(rows, alive.sender)

    def _gone(self, name: str) -> None:
        """Its loaders have lost their connection; they may come back here or elsewhere."""
        if self._peers.pop(name, None) is None:
            return
        self._count()
        self._backend.lookout.lose(name)
        for entry in list(self._backend.registry):
            if entry.replica == name:
                entry.orphan()
                self._learnt(lambda entry=entry: self._backend.hub.changed(entry))  # type: ignore[misc]
                self.inherited.catch_up(entry)
        self.inherited.look_for_commands()

    def _count(self) -> None:
        names = sorted([self._name, *self._peers])
        self.share = (names.index(self._name), len(names))

    def _learn(self, known: Known) -> None:
        places: dict[str, RunPlace] = {}
        for one in known.loaders:
            entry = self._backend.registry.learn(one, known.sender)
            if entry is not None:
                if entry.here:
                    self._backend.publishers.replace(entry)  # it has gone there
                    entry.learn(one, known.sender)
                self._backend.hub.changed(entry)
                if entry.replica:
                    for command in self._backend.commands.open_here(entry.id):
                        self.ordered(entry, command)
                places[entry.run] = RunPlace(entry.run, one.place, one.placed)
        self._learn_places(places.values(), known.sender)

    def _learn_places(self, places: Iterable[RunPlace], sender: str) -> None:
        """Whoever has not heard of the last one is told."""
        for place in places:
            self._put(place)
            mine = self._backend.registry.place_of(place.run)
            if mine.number > place.number:
                self._tell_places([mine], sender)

    def _put(self, place: RunPlace) -> None:
        for entry in self._backend.registry.put(place):
            self._backend.hub.changed(entry)

    def _learn_rows(self, rows: Iterable[LoaderRow]) -> None:
        for row in rows:
            entry = self._backend.registry.get(row.id)
            if entry is not None and entry.replica:
                entry.told = row
                self._backend.hub.row_changed(entry)

    def _learnt(self, work: Callable[[], object]) -> None:
        self._learning = True
        try:
            work()
        finally:
            self._learning = False
