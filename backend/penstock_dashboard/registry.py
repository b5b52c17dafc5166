"""Every loader the backend knows: what it said of itself, what it sent last, and whether it is still
there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
from penstock.protocol import (
    Command,
    Frame,
    Hello,
    Identity,
    LoaderDetail,
    LoaderRow,
    LoaderState,
    Presence,
    Rates,
    Snapshot,
    loader_id,
)

from .rates import Meter, alive, brief
from .settings import Limits, Timing
from .store import LoaderRecord, Mark

TRUSTED_CLOCK = 120.0
"""A loader's clock that is further off than this, in seconds, is taken for wrong and allowed for."""


class Entry:
    """One loader. A restarted training goes on with the entry of the one before, as a new incarnation."""

    def __init__(self, key: int, hello: Hello) -> None:
        self.key = key
        self.id = loader_id(hello.identity.run, hello.identity.rank, hello.identity.name)
        self.hello = hello
        self.presence: Presence = "lost"
        self.seen = time.time()
        self.heard = time.monotonic()
        self.snapshot: Snapshot | None = None
        self.rates = Rates()
        self.received = 0.0
        """When the last snapshot came, by our clock."""
        self.last_seq = -1
        """Last sequenced message of this incarnation that came."""
        self.missed = 0
        """Messages that the sequence numbers say we never got."""
        self.meter = Meter()
        self.send: Callable[[Command], None] | None = None
        """Set while connected."""
        self.owner: object = None
        """The connection that speaks for it now."""

    @property
    def run(self) -> str:
        return self.hello.identity.run

    @property
    def connected(self) -> bool:
        return self.send is not None

    @property
    def state(self) -> LoaderState:
        return self.snapshot.state if self.snapshot is not None else "idle"

    def take(self, snapshot: Snapshot) -> None:
        self.rates = self.meter.take(snapshot)
        self.snapshot = snapshot
        self.received = time.time()

    def row(self) -> LoaderRow:
        snapshot = self.snapshot
        gone = self.presence in ("lost", "finished")
        row = LoaderRow(
            id=self.id,
            identity=self.hello.identity,
            presence=self.presence,
            state=self.state,
            seen=self.seen,
            started=self.hello.started,
            control=self.hello.config.control,
            engine=self.hello.config.engine,
        )
        if snapshot is None:
            return row
        return msgspec.structs.replace(
            row,
            epoch=snapshot.epoch,
            batch=snapshot.batch,
            length=snapshot.length,
            workers=alive(snapshot),
            target=snapshot.target,
            rates=Rates() if gone else brief(self.meter.recent(snapshot)),
        )

    def detail(self) -> LoaderDetail:
        return LoaderDetail(self.row(), self.hello.config, self.hello.versions, self.hello.interval_us, self.snapshot)

    def frame(self) -> Frame:
        assert self.snapshot is not None, "a frame is asked for only after a snapshot came"
        return Frame(self.id, self.snapshot, self.rates, self.presence, self.received)

    def now(self) -> float:
        """The moment on the loader's own clock, on which its history is laid out."""
        ahead = 0.0 if self.snapshot is None else self.snapshot.at - self.seen
        return time.time() + (ahead if abs(ahead) > TRUSTED_CLOCK else 0.0)

    def record(self) -> LoaderRecord:
        snapshot = None if self.snapshot is None else msgspec.msgpack.encode(self.snapshot)
        return LoaderRecord(self.key, self.id, msgspec.msgpack.encode(self.hello), snapshot, self.presence, self.seen)


class Refusal(Exception):
    """A loader cannot be taken in; the text is for the person who runs it."""


class Registry:
    def __init__(self, limits: Limits, timing: Timing) -> None:
        self._limits = limits
        self._timing = timing
        self._entries: dict[str, Entry] = {}
        self._next_key = 1
        self._runs: dict[str, int] = {}
        self.on_forgotten: Callable[[Entry], None] = lambda _entry: None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, identifier: str) -> Entry | None:
        return self._entries.get(identifier)

    def find(self, identity: Identity) -> Entry | None:
        return self._entries.get(loader_id(identity.run, identity.rank, identity.name))

    def of_run(self, run: str) -> list[Entry]:
        entries = [entry for entry in self if entry.run == run]
        return sorted(entries, key=lambda entry: (entry.hello.identity.rank, entry.hello.identity.name))

    def restore(self, records: list[tuple[LoaderRecord, Mark]]) -> None:
        """Take in what the store remembers. Nobody is connected yet; who was may come back."""
        for record, mark in records:
            try:
                hello = msgspec.msgpack.decode(record.hello, type=Hello)
                snapshot = record.snapshot and msgspec.msgpack.decode(record.snapshot, type=Snapshot)
            except msgspec.DecodeError:
                continue  # written by a later version: the loader will say hello again
            entry = Entry(record.key, hello)
            entry.snapshot = snapshot or None
            entry.seen = record.seen
            gone = record.presence in ("finished", "lost")
            entry.presence = cast(Presence, record.presence) if gone else "stale"  # it has its time to come back
            if mark.incarnation == hello.identity.incarnation:
                entry.last_seq = mark.seq
            self._add(entry)
            self._next_key = max(self._next_key, record.key + 1)

    def welcome(self, hello: Hello) -> Entry:
        """The entry for a loader that says hello; raises `Refusal` when there are too many."""
        identity = hello.identity
        entry = self.find(identity)
        if entry is None:
            if self._runs.get(identity.run, 0) >= self._limits.loaders_per_run:
                raise Refusal(f"run {identity.run} has {self._limits.loaders_per_run} loaders, which is the limit")
            if len(self) >= self._limits.loaders:
                self._make_room()
            entry = Entry(self._next_key, hello)
            self._next_key += 1
            self._add(entry)
        elif entry.hello.identity.incarnation != identity.incarnation:
            entry.last_seq = -1
            entry.meter = Meter()
            entry.snapshot = None
            entry.rates = Rates()
        entry.hello = hello
        return entry

    def forget(self, entry: Entry) -> None:
        del self._entries[entry.id]
        self._runs[entry.run] -= 1
        if not self._runs[entry.run]:
            del self._runs[entry.run]
        self.on_forgotten(entry)

    def sweep(self, now: float, kept: float) -> list[Entry]:
        """Entries whose presence has changed because time went by. Those silent for `kept` seconds are
        forgotten.
        """
        changed = []
        for entry in list(self):
            presence = self._presence(entry, now)
            if presence != entry.presence:
                entry.presence = presence
                changed.append(entry)
            elif not entry.connected and time.time() - entry.seen > kept:
                self.forget(entry)
        return changed

    def _presence(self, entry: Entry, now: float) -> Presence:
        if entry.presence == "finished":
            return "finished"
        silent = now - entry.heard
        if not entry.connected:
            if entry.presence == "lost" or silent > self._timing.reconnect:
                return "lost"
            return "stale"
        if silent > self._timing.lost:
            return "lost"
        patience = max(1.0, self._timing.stale_intervals * entry.hello.interval_us * 1e-6)
        return "stale" if silent > patience else "connected"

    def _add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._runs[entry.run] = self._runs.get(entry.run, 0) + 1

    def _make_room(self) -> None:
        gone = [entry for entry in self if not entry.connected]
        if not gone:
            raise Refusal(f"{self._limits.loaders} loaders are connected, which is the limit")
        # Several at once, since finding the oldest means looking at all.
        for entry in heapq.nsmallest(max(1, self._limits.loaders // 64), gone, key=lambda entry: entry.seen):
            self.forget(entry)
