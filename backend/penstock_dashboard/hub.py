"""From loaders to viewers. Everything is encoded once, however many watch it, and only if somebody does.

The overview is sent in ticks. Each row knows the tick at which it last changed, each viewer the tick it was
last sent; the difference is what it needs, so a viewer that was slow gets the latest rows and none of those
between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from msgspec.json import encode
from penstock.insight.runs import Member, member, summary
from penstock.protocol import Alerts, CommandChanged, CommandRecord, Detail, Gone, Overview, Pong, Session, Snapshot

from .encoded import Encoded
from .registry import Entry, Registry
from .seats import CLOSING, Seat
from .settings import Limits
from .store import EventRecord
from .viewer import LiveEvent, Viewer

MOST_BLOBS = 4
"""Viewers that keep up have seen the same tick; for each of the others the overview may be made anew."""

AT_ONCE = 64
"""Rows that are encoded before others have their turn: a few milliseconds."""

_OVERVIEW = encode(Overview([]))[: -len(b'],"removed":[],"complete":false,"runs":[]}')]


class Elsewhere(Protocol):
    """Viewers at other replicas."""

    @property
    def overview(self) -> bool:
        """Whether one of them looks at the overview."""

    def watched(self, loader: str) -> bool:
        """Whether one of them looks at this loader."""

    def watching_changed(self) -> None:
        """Other loaders are looked at here than before."""

    def frame(self, loader: str, text: str) -> None:
        """The latest frame of a loader that is connected here."""

    def changed(self, entry: Entry) -> None:
        """A loader's configuration or presence has changed."""

    def rows(self, rows: list[bytes]) -> None:
        """Rows of loaders that are connected here, which have changed."""


class Nobody:
    """Nobody looks."""

    overview = False

    def watched(self, loader: str) -> bool:  # noqa: ARG002
        return False

    def watching_changed(self) -> None: ...

    def frame(self, loader: str, text: str) -> None: ...

    def changed(self, entry: Entry) -> None: ...

    def rows(self, rows: list[bytes]) -> None: ...


class Connection:
    """A viewer and the bell that wakes its sender."""

    def __init__(self, viewer: Viewer, seat: Seat | None = None) -> None:
        self.viewer = viewer
        self.bell = asyncio.Event()
        self.closing = ""
        """Why the connection shall end."""
        self._seat = seat

    def close(self, reason: str) -> None:
        """It is told why, if it reads; else it is hung up on."""
        self.closing = reason
        self.bell.set()
        if self._seat is not None:
            self._seat.close_within(CLOSING)

    def tell(self, message: Session | Pong | Gone | Alerts) -> None:
        """What is of interest only as it stands: of each kind, and of each loader that has gone, the latest."""
        about = message.loader if isinstance(message, Gone) else type(message).__name__
        self.viewer.tell(about, encode(message).decode())
        self.bell.set()


class Hub:
    """Hands what loaders say on to the viewers that look at them."""

    def __init__(self, registry: Registry, limits: Limits) -> None:
        self.connections: set[Connection] = set()
        self._registry = registry
        self._limits = limits
        self._watchers: dict[str, set[Connection]] = {}
        self._tick = 0
        self._rows: dict[str, tuple[int, bytes]] = {}
        """Loader → tick of its last change, its row encoded."""
        self._by_run: dict[str, dict[str, Member]] = {}
        """Run → loader → what is said of the run as a whole needs to know of it."""
        self._runs: dict[str, tuple[int, bytes]] = {}
        """Run of several loaders → tick of its last change, its summary encoded."""
        self._changed: set[str] = set()
        """Loaders whose rows must be encoded anew."""
        self._touched: set[str] = set()
        """Runs with rows that were encoded since the last tick."""
        self._removed: deque[tuple[int, str]] = deque(maxlen=1000)
        self._blobs: dict[int, str] = {}
        """What a viewer needs that has seen tick N, worked out once per tick for the first few of them."""
        self._encoded = Encoded(limits.encoded)
        self._here: list[bytes] = []
        """Rows of the tick that comes, of loaders that are connected at this replica."""
        self.elsewhere: Elsewhere = Nobody()
        """Viewers at other replicas."""

    @property
    def watching(self) -> list[str]:
        """Loaders that somebody looks at here."""
        return list(self._watchers)

    @property
    def wants_overview(self) -> bool:
        return any(connection.viewer.overview for connection in self.connections)

    def join(self, seat: Seat | None = None) -> Connection:
        limits = self._limits
        viewer = Viewer(limits.viewer_events, limits.viewer_bytes, limits.viewer_commands)
        connection = Connection(viewer, seat)
        self.connections.add(connection)
        return connection

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._watch(connection, ())

    def follow(self, connection: Connection, loaders: Iterable[str]) -> None:
        self._watch(connection, loaders)

    def watchers(self, loader: str) -> list[Connection]:
        """Those who look at this loader here."""
        return list(self._watchers.get(loader, ()))

    def is_watched(self, loader: str) -> bool:
        """Whether somebody looks at this loader itself, not only at the overview; here or at another replica."""
        return loader in self._watchers or self.elsewhere.watched(loader)

    # ------------------------------------------------------------------------------------- from the loaders

    def snapshot(self, entry: Entry, snapshot: Snapshot) -> None:
        """A loader's numbers have changed."""
        self._changed.add(entry.id)
        self._encoded.drop(f"detail {entry.id}")
        self._encoded.drop(f"frame {entry.id}")
        if not self.is_watched(entry.id):
            entry.unwatched()
            return
        text = encode(entry.frame(snapshot)).decode()
        self._encoded.put(f"frame {entry.id}", text)
        self.elsewhere.frame(entry.id, text)
        for connection in self._watchers.get(entry.id, ()):
            connection.viewer.frame(entry.id)
            connection.bell.set()

    def shown(self, entry: Entry, frame: str, detail: str) -> None:
        """The latest of a loader at another replica."""
        watchers = self._watchers.get(entry.id, ())
        if detail:
            self._encoded.put(f"detail {entry.id}", detail)
        if frame:
            entry.received = time.time()
            self._encoded.put(f"frame {entry.id}", frame)
        for connection in watchers:
            if detail:
                connection.viewer.detail(entry.id)
            if frame:
                connection.viewer.frame(entry.id)
            connection.bell.set()

    def row_changed(self, entry: Entry) -> None:
        """Only what the overview says of it has changed."""
        self._changed.add(entry.id)

    def changed(self, entry: Entry) -> None:
        """A loader's configuration or presence has changed."""
        self._changed.add(entry.id)
        self._encoded.drop(f"detail {entry.id}")
        self._encoded.drop(f"frame {entry.id}")
        self.elsewhere.changed(entry)
        for connection in self._watchers.get(entry.id, ()):
            connection.viewer.detail(entry.id)
            connection.bell.set()

    def frame(self, loader: str) -> str | None:
        """The latest frame of a loader, for whoever can be sent one now."""
        return self._encoded.get(f"frame {loader}", lambda: self._make_frame(loader))

    def _make_frame(self, loader: str) -> str | None:
        entry = self._registry.get(loader)
        snapshot = entry.snapshot if entry is not None else None
        return None if entry is None or snapshot is None else encode(entry.frame(snapshot)).decode()

    def detail(self, loader: str) -> str | None:
        """All that is known of a loader."""
        return self._encoded.get(f"detail {loader}", lambda: self._make_detail(loader))

    def _make_detail(self, loader: str) -> str | None:
        entry = self._registry.get(loader)
        return None if entry is None else encode(Detail(entry.detail())).decode()

    def removed(self, entry: Entry) -> None:
        self._changed.discard(entry.id)
        self._encoded.drop(f"detail {entry.id}")
        self._encoded.drop(f"frame {entry.id}")
        if self._rows.pop(entry.id, None) is not None:
            self._removed.append((self._tick + 1, entry.id))
            rows = self._by_run.get(entry.run, {})
            rows.pop(entry.id, None)
            if not rows:
                self._by_run.pop(entry.run, None)
                self._runs.pop(entry.run, None)
        for connection in self._watchers.get(entry.id, ()):
            connection.tell(Gone(entry.id))

    def events(self, records: list[EventRecord]) -> None:
        """Events have been stored."""
        for record in records:
            entry = self._registry.get(record.loader)
            if entry is not None:
                entry.newest_event = record.id
            watchers = self._watchers.get(record.loader)
            if watchers:
                event = LiveEvent(record)
                for connection in watchers:
                    connection.viewer.event(event)
                    connection.bell.set()

    def command(self, record: CommandRecord) -> None:
        watchers = self._watchers.get(record.loader, set()) | {c for c in self.connections if c.viewer.overview}
        if watchers:
            message = encode(CommandChanged(record)).decode()
            for connection in watchers:
                connection.viewer.command(record.id, message)
                connection.bell.set()
                if connection.viewer.hopeless:
                    connection.close("too much waits for this viewer; come back")

    # ------------------------------------------------------------------------------------------ the overview

    async def tick(self) -> None:
        """Encode the rows that changed, some at a time, so that nobody waits for thousands of them, and wake those who
        watch the overview. What changes meanwhile is for the next tick.
        """
        if not self.wants_overview and not self.elsewhere.overview:
            return  # the rows stay marked as changed until somebody looks
        fresh = list(self._fresh())
        for first in range(0, len(fresh), AT_ONCE):
            self._encode_rows(fresh[first : first + AT_ONCE])
            await asyncio.sleep(0)
        self._finish_tick()
        for connection in self.connections:
            viewer = connection.viewer
            if viewer.overview and viewer.overview_seen < self._tick:
                viewer.overview_due = True
                connection.bell.set()

    def overview(self, viewer: Viewer) -> str | None:
        """What this viewer's overview lacks, or None."""
        if not viewer.overview_due:
            return None
        viewer.overview_due = False
        if viewer.overview_seen < 0:
            self._advance()
        elif viewer.overview_seen == self._tick:
            return None
        seen, viewer.overview_seen = viewer.overview_seen, self._tick
        blob = self._blobs.get(seen)
        if blob is None:
            blob = self._since(seen)
            if len(self._blobs) < MOST_BLOBS:
                self._blobs[seen] = blob
        return blob

    def _advance(self) -> None:
        """All that changed, at once: for a viewer that has nothing yet."""
        self._encode_rows(self._fresh())
        self._finish_tick()

    def _fresh(self) -> set[str]:
        """Loaders whose rows are not as they should be."""
        if len(self._rows) + len(self._changed) < len(self._registry):
            self._changed |= {entry.id for entry in self._registry if entry.id not in self._rows}
        return set(self._changed)

    def _encode_rows(self, loaders: Iterable[str]) -> None:
        """Those of them that nobody encoded since they changed: they belong to the tick that comes."""
        for identifier in loaders:
            entry = self._registry.get(identifier)
            if entry is not None and identifier in self._changed:
                row = entry.row()
                encoded = encode(row)
                self._rows[identifier] = (self._tick + 1, encoded)
                if entry.here:
                    self._here.append(encoded)
                self._by_run.setdefault(entry.run, {})[identifier] = member(row)
                self._touched.add(entry.run)
            self._changed.discard(identifier)

    def _finish_tick(self) -> None:
        removed = bool(self._removed) and self._removed[-1][0] > self._tick
        if not self._touched and not removed and self._tick:
            return
        self._tick += 1
        for run in self._touched:
            members = self._by_run.get(run, {})
            if len(members) > 1:
                self._runs[run] = (self._tick, encode(summary(run, members.values())))
        self._touched = set()
        self._blobs = {}
        here, self._here = self._here, []
        self.elsewhere.rows(here)

    def _since(self, seen: int) -> str:
        rows = [row for tick, row in self._rows.values() if tick > seen]
        forgotten = len(self._removed) == self._removed.maxlen and self._removed[0][0] > seen
        complete = seen < 0 or forgotten
        if complete:
            rows = [row for _, row in self._rows.values()]
        removed = [name for tick, name in self._removed if tick > seen and name not in self._rows]
        runs = b",".join(told for tick, told in self._runs.values() if complete or tick > seen)
        tail = b'],"removed":%s,"complete":%s,"runs":[%s]}' % (
            encode([] if complete else removed),
            encode(complete),
            runs,
        )
        return (_OVERVIEW + b",".join(rows) + tail).decode()

    def _watch(self, connection: Connection, loaders: Iterable[str]) -> None:
        for watchers in self._watchers.values():
            watchers.discard(connection)
        for loader in loaders:
            self._watchers.setdefault(loader, set()).add(connection)
        self._watchers = {loader: watchers for loader, watchers in self._watchers.items() if watchers}
        self.elsewhere.watching_changed()
