"""Every loader the backend knows: what it said of itself, what it sent last, and whether it is still
there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
from msgspec import UNSET
from penstock.insight.cheaper import Cheaper
from penstock.insight.judge import Judge
from penstock.insight.line import WithoutLine
from penstock.insight.numbers import alive
from penstock.insight.offer import Offers
from penstock.insight.rates import brief as in_brief
from penstock.insight.shares import of_rates, waiting, waits_for
from penstock.insight.workers import WorkerMeter
from penstock.protocol import (
    Command,
    Errors,
    Frame,
    Hello,
    Identity,
    Load,
    LoaderDetail,
    LoaderRow,
    LoaderState,
    Pace,
    Place,
    Presence,
    Rates,
    Snapshot,
    Verdict,
    loader_id,
)

from .bus.messages import KnownLoader
from .settings import Limits, Timing
from .shelf import Shelf
from .store import Claim, Known, LoaderRecord, RunPlace

TRUSTED_CLOCK = 120.0
"""A loader's clock that is further off than this, in seconds, is taken for wrong and allowed for."""


class Brief(msgspec.Struct, frozen=True):
    """What is always at hand of a loader's last snapshot."""

    at: float
    state: LoaderState
    epoch: int
    batch: int
    length: int | None
    workers: int
    """Workers alive."""
    target: int
    errors: Errors | None = None
    quarantined: int = 0
    """Samples set aside."""
    unknown: list[str] = []
    """What the row cannot say."""
    hang_us: int = 0
    """How long training has waited for one batch, if that is unusually long."""
    largest: int = 0
    """Resident memory of the worker that has most, bytes; 0: not known."""


class Entry:
    """One loader. A restarted training goes on with the entry of the one before, as a new incarnation."""

    def __init__(self, key: int, hello: Hello, owner: int, shelf: Shelf) -> None:
        self.key = key
        self.claim = 0
        """Under which its messages are stored."""
        self.owner = owner
        """Number of the token that it came with first: its records are on that account."""
        self.id = loader_id(hello.identity.run, hello.identity.rank, hello.identity.name)
        self.hello = hello
        self.presence: Presence = "lost"
        self.place: Place = "shown"
        """Where its run stands in the overview."""
        self.lived = True
        """It was well since this dashboard began, or may have been: how it ends is news here."""
        self.seen = time.time()
        self.heard = time.monotonic()
        self.brief: Brief | None = None
        self.rates = Rates()
        self.received = 0.0
        """When the last snapshot came, by our clock."""
        self.last_seq = -1
        """Last sequenced message of this incarnation that came."""
        self.newest_event = 0
        """The last event of it that viewers may have seen."""
        self.missed = 0
        """Messages that the sequence numbers say we never got."""
        self.judge = Judge(hello.config)
        self._left: dict[Presence, Verdict] = {}
        """What is said of it by its presence, since its connection ended; empty: it is being judged."""
        self._rates_before = Rates()
        """Its rates over the last 10 s before that,"""
        self._last_epoch = Rates()
        """and over its last epoch."""
        self.load: Load | None = None
        """What it said last of what its batches need: what replay starts from."""
        self._offers = Offers()
        self._without = WithoutLine()
        self._cheaper = Cheaper()
        self._workers: WorkerMeter | None = None
        """What its workers do, while somebody looks at it."""
        self.pace = 0.0
        """Seconds between two snapshots that were asked for; 0: it was told nothing."""
        self.watched = float("-inf")
        """When somebody looked at it last, on the monotonic clock."""
        self._patience = 0.0
        """Seconds of silence after which it is stale."""
        self.send: Callable[[Command | Pace], None] | None = None
        """Set while connected here."""
        self.replica = ""
        """The other replica at which it is connected."""
        self.told: LoaderRow | None = None
        """What that said of it last."""
        self.home = ""
        """The replica that has it, or had it last; empty: it was there before this one began."""
        self._state: LoaderState = "idle"
        """What was said last of its state, if there is no snapshot."""
        self.speaker: object = None
        """The connection that speaks for it now."""
        self._shelf = shelf

    @property
    def run(self) -> str:
        return self.hello.identity.run

    @property
    def here(self) -> bool:
        """Connected at this replica."""
        return self.send is not None

    @property
    def connected(self) -> bool:
        """Connected at this replica or at another one."""
        return self.here or bool(self.replica)

    @property
    def workers(self) -> int:
        """Workers alive."""
        if self.replica and self.told is not None:
            return self.told.workers
        return self.brief.workers if self.brief is not None else 0

    @property
    def interval(self) -> float:
        """Seconds between two of its snapshots."""
        return max(self.hello.interval_us * 1e-6, self.pace)

    def hear(self, intervals: int) -> None:
        """A message came. A pace counts from the first one on that comes in it, or at once if it is a slower one."""
        self.heard, self.seen = time.monotonic(), time.time()
        self._patience = max(1.0, intervals * self.interval)

    def silent_for_long(self, silent: float, intervals: int) -> bool:
        """Whether it should have said something, by the pace that it has heard of."""
        return silent > max(self._patience, 1.0, intervals * self.interval)

    @property
    def refuses(self) -> str:
        """Why it takes no commands, as a sentence; empty: it takes them. Nobody else here asks for the reasons."""
        config = self.hello.config
        if config.engine == "torch":
            return "This loader is only watched (loader.watch): it can be seen but not steered."
        if not config.control:
            return "This loader takes no commands: it was made with allow_control=False."
        if self.presence == "finished" or self.state == "closed":
            return "The training has finished: there is nothing left to steer."
        return "The loader is lost: nobody would hear a command." if self.presence == "lost" else ""

    @property
    def state(self) -> LoaderState:
        return self.brief.state if self.brief is not None else self._state

    @property
    def snapshot(self) -> Snapshot | None:
        """The last one, unless there was no room to keep it."""
        encoded = self._shelf.get(self.owner, self.key)
        return None if encoded is None else msgspec.msgpack.decode(encoded, type=Snapshot)

    def take(self, snapshot: Snapshot, encoded: bytes) -> None:
        self._left = {}
        self.lived = self.lived or snapshot.state != "failed"
        self.rates = self.judge.take(snapshot)
        self.keep(snapshot, encoded)
        self.received = time.time()

    def keep(self, snapshot: Snapshot, encoded: bytes) -> None:
        self.brief = Brief(
            snapshot.at,
            snapshot.state,
            snapshot.epoch,
            snapshot.batch,
            snapshot.length,
            alive(snapshot),
            snapshot.target,
            None if snapshot.errors is UNSET else snapshot.errors,
            len(snapshot.quarantined),
            _unknown_in_row(snapshot),
            0 if snapshot.hang is UNSET else snapshot.hang.us,
            max([worker.rss for worker in snapshot.workers], default=0),
        )
        self._shelf.put(self.owner, self.key, encoded)

    def leave(self) -> None:
        """Its connection has ended. The judge keeps snapshots as objects, and there may be thousands of loaders that
        are gone: what would be said of this one is kept instead. Should it come back, it is judged anew.
        """
        if not self._left:
            self._left = {presence: self.judge.verdict(presence) for presence in ("stale", "lost", "finished")}
            self._rates_before, self._last_epoch = self.judge.recent(), self.judge.last_epoch()
            self.judge = Judge(self.hello.config)
            self.load = self._workers = None

    def begin(self) -> None:
        """A new incarnation: nothing is known of it yet."""
        self.lived = True
        self.last_seq = -1
        self.judge = Judge(self.hello.config)
        self._left = {}
        self.brief = None
        self._state = "idle"
        self.load = None
        self.rates = Rates()
        self._shelf.drop(self.owner, self.key)

    def learn(self, known: KnownLoader, replica: str) -> None:
        """What another replica said of its coming and going."""
        self.claim = known.claim
        self.hello = msgspec.msgpack.decode(known.hello, type=Hello)
        self.presence, self.seen = cast(Presence, known.presence), known.seen
        self.heard = time.monotonic()
        self._state, self.lived = cast(LoaderState, known.state), known.lived
        if known.here:
            self.home = replica
        self.replica = replica if known.here else ""
        if not self.replica:
            self._keep_told()
        elif not self._left:
            self.leave()
        if self.brief is not None:
            self.brief = msgspec.structs.replace(self.brief, state=self._state)

    def orphan(self) -> None:
        """The replica at which it was connected is gone. What that said last is what is known."""
        self.replica = ""
        self.heard = time.monotonic()
        if self.presence == "connected":
            self.presence = "stale"
        self._keep_told()

    def _keep_told(self) -> None:
        """Nobody says anything more of it: what was said last becomes what is known here."""
        told, self.told = self.told, None
        if told is not None:
            epoch, batch, length, target = told.epoch, told.batch, told.length, told.target
            state = self._state  # it is told at once, and rows are not
            snapshot = Snapshot(0, told.seen, state, epoch=epoch, batch=batch, length=length, target=target)
            self._left, self.judge = {}, Judge(self.hello.config)
            self.judge.take(snapshot)
            self.leave()
            self.brief = Brief(told.seen, state, epoch, batch, length, told.workers, target, unknown=told.unknown)

    def row(self) -> LoaderRow:
        if self.replica and self.told is not None:
            about = {"presence": self.presence, "seen": self.seen, "place": self.place, "refuses": self.refuses}
            return msgspec.structs.replace(self.told, **about)
        brief = self.brief
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
            refuses=self.refuses,
            place=self.place,
        )
        if brief is None:
            return row
        rates = Rates() if gone else in_brief(self._recent())
        shares = of_rates(rates) if self.state == "running" and self.presence == "connected" else None
        return msgspec.structs.replace(
            row,
            epoch=brief.epoch,
            batch=brief.batch,
            length=brief.length,
            workers=brief.workers,
            target=brief.target,
            rates=rates,
            waiting=None if shares is None else round(waiting(shares), 4),
            waits_for=None if shares is None else waits_for(shares),
            verdict=self._offers.brief(self.verdict(), self.load, self.hello.config),
            errors=0 if brief.errors is None else brief.errors.count,
            error="" if brief.errors is None else brief.errors.text,
            unknown=brief.unknown,
            hang_us=brief.hang_us,
        )

    def detail(self) -> LoaderDetail:
        row, hello, over = self.row(), self.hello, None
        if self.presence in ("lost", "finished"):
            over = in_brief(self._last_epoch if self._left else self.judge.last_epoch())
        interval_us = round(self.interval * 1e6)
        machines = self.judge.meter.machines()
        return LoaderDetail(
            row, hello.config, hello.versions, interval_us, self.snapshot, self.offered(), over, machines
        )

    def frame(self, snapshot: Snapshot) -> Frame:
        """For those who look at it."""
        meter = self._workers = self._workers or WorkerMeter()
        meter.take(snapshot)
        said, recent = self.offered(), in_brief(self._recent())
        workers, machines = meter.rates(snapshot), self.judge.meter.machines()
        return Frame(
            self.id, snapshot, self.rates, self.presence, self.received, said, recent, workers, *meter.pin(), machines
        )

    def unwatched(self) -> None:
        """Nobody looks at it any more."""
        self._workers = None

    def _recent(self) -> Rates:
        """Rates over the last 10 s, or the last ones before it left."""
        return self._rates_before if self._left else self.judge.recent()

    def verdict(self) -> Verdict:
        """What limits it, by all that was heard of it."""
        return self._left.get(self.presence) or self.judge.verdict(self.presence)

    def offered(self) -> Verdict:
        """The same with what replay offers, for those who look at this loader: worked out once for what it recorded."""
        verdict, load = self.verdict(), self.load
        if load is None or self.presence != "connected":
            return verdict
        config = self.hello.config
        verdict = self._without.add(self._offers.add(verdict, load, config), load)
        return self._cheaper.add(verdict, load, config, lambda: self.snapshot)

    def now(self) -> float:
        """The moment on the loader's own clock, on which its history is laid out."""
        ahead = 0.0 if self.brief is None else self.brief.at - self.seen
        return time.time() + (ahead if abs(ahead) > TRUSTED_CLOCK else 0.0)

    def record(self) -> LoaderRecord:
        snapshot = self._shelf.get(self.owner, self.key)
        hello = msgspec.msgpack.encode(self.hello)
        return LoaderRecord(self.key, self.id, hello, snapshot, self.presence, self.seen, self.owner, self.claim)


def _unknown_in_row(snapshot: Snapshot) -> list[str]:
    """Names of the fields of a row that a snapshot does not tell."""
    if snapshot.unknown is UNSET:
        return []
    sources = {"workers": "workers", "target": "target", "rates.busy": "workers.fetch_us", "rates.rss": "workers.rss"}
    sources |= {"rates.reorder_stall": "times.reorder_stall_us", "rates.pin_wait": "times.pin_wait_us"}
    sources |= {"rates.samples": "samples", "rates.bytes": "bytes"}
    return [name for name, source in sources.items() if not snapshot.knows(source)]


class Refusal(Exception):
    """A loader cannot be taken in; the text is for the person who runs it."""


class Full(Refusal):
    """There are too many."""


class Registry:
    """Every loader that the backend knows."""

    def __init__(self, limits: Limits, timing: Timing) -> None:
        self._limits = limits
        self._timing = timing
        self._entries: dict[str, Entry] = {}
        self._shelf = Shelf(limits.snapshots)
        self._places: dict[str, RunPlace] = {}
        """Run → its place in the overview, where somebody gave it one."""
        self._owners: dict[int, dict[str, int]] = {}
        """Token → run → how many loaders."""
        self.most_per_token = limits.of_one_token(limits.loaders)
        self.on_forgotten: Callable[[Entry], None] = lambda _entry: None
        self.on_dropped: Callable[[Entry], None] = lambda _entry: None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._entries

    def get(self, identifier: str) -> Entry | None:
        return self._entries.get(identifier)

    def find(self, identity: Identity) -> Entry | None:
        return self._entries.get(loader_id(identity.run, identity.rank, identity.name))

    def of_run(self, run: str) -> list[Entry]:
        entries = [entry for entry in self if entry.run == run]
        return sorted(entries, key=lambda entry: (entry.hello.identity.rank, entry.hello.identity.name))

    def restore(self, known: Known) -> None:
        """Take in what the store remembers. Nobody is connected yet; who was may come back."""
        for record, mark in known.loaders:
            try:
                hello = msgspec.msgpack.decode(record.hello, type=Hello)
                snapshot = record.snapshot and msgspec.msgpack.decode(record.snapshot, type=Snapshot)
            except msgspec.DecodeError:
                continue  # written by a later version: the loader will say hello again
            entry = Entry(record.key, hello, record.owner, self._shelf)
            entry.claim = record.claim
            if record.snapshot and snapshot:
                entry.judge.take(snapshot)
                entry.keep(snapshot, record.snapshot)
                entry.leave()
            entry.seen = record.seen
            gone = record.presence in ("finished", "lost")
            entry.presence = cast(Presence, record.presence) if gone else "stale"  # it has its time to come back
            entry.lived = not gone and entry.state != "failed"
            if mark.incarnation == hello.identity.incarnation:
                entry.last_seq = mark.seq
            self._add(entry)
        for place in known.places:
            self.put(place)

    def admit(self, hello: Hello, owner: int) -> None:
        """Make room for a loader that says hello under a token; raises `Full` when there are too many."""
        if self.find(hello.identity) is None:
            self._make_room(owner, hello.identity.run)

    def welcome(self, hello: Hello, claim: Claim) -> Entry:
        """The entry for a loader that was claimed; raises `Full` when others were faster."""
        entry = self.find(hello.identity)
        if entry is not None and entry.key != claim.key:
            self._remove(entry)  # somebody else had it forgotten
            entry = None
        if entry is None:
            self._make_room(claim.owner, hello.identity.run)
            entry = Entry(claim.key, hello, claim.owner, self._shelf)
            self._add(entry)
        elif entry.hello.identity.incarnation != hello.identity.incarnation:
            entry.begin()
        entry.claim, entry.last_seq = claim.number, claim.last_seq
        entry.replica, entry.told = "", None
        entry.hello = hello
        entry.judge.config = hello.config
        return entry

    def learn(self, known: KnownLoader, replica: str) -> Entry | None:
        """The entry of a loader of which another replica spoke, if that was news: older claims are of the past."""
        try:
            hello = msgspec.msgpack.decode(known.hello, type=Hello)
        except msgspec.DecodeError:
            return None
        entry = self.find(hello.identity)
        if entry is not None and entry.key != known.key:
            if entry.here:
                return None
            self._remove(entry)
            entry = None
        if entry is None:
            entry = Entry(known.key, hello, known.owner, self._shelf)
            self._add(entry)
        elif known.claim < entry.claim or (known.claim == entry.claim and entry.here):
            return None
        if not entry.here:
            entry.learn(known, replica)
        return entry

    def forget(self, entry: Entry) -> None:
        self._remove(entry)
        self.on_forgotten(entry)

    def drop(self, entry: Entry) -> None:
        """Another replica has had it forgotten."""
        self._remove(entry)
        self.on_dropped(entry)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.id]
        self._shelf.drop(entry.owner, entry.key)
        runs = self._owners[entry.owner]
        runs[entry.run] -= 1
        if not runs[entry.run]:
            del runs[entry.run]
            if not any(entry.run in of_owner for of_owner in self._owners.values()):
                self._places.pop(entry.run, None)

    @property
    def places(self) -> list[RunPlace]:
        """Of all runs that were given one."""
        return list(self._places.values())

    def place_of(self, run: str) -> RunPlace:
        return self._places.get(run) or RunPlace(run)

    def put(self, place: RunPlace) -> list[Entry]:
        """A run has another place in the overview: with the loaders that it has, and with those that will come. Returns
        the former if that is news: of two places the later one holds, whoever hears of which first.
        """
        if place.number <= self.place_of(place.run).number:
            return []
        entries = self.of_run(place.run)
        if entries:
            self._places[place.run] = place
        for entry in entries:
            entry.place = cast(Place, place.place)
        return entries

    def sweep(self, now: float, kept: float) -> list[Entry]:
        """Entries whose presence has changed because time went by. Those silent for `kept` seconds are
        forgotten, unless they are pinned.
        """
        changed = []
        for entry in list(self):
            presence = self._presence(entry, now)
            if presence != entry.presence:
                entry.presence = presence
                changed.append(entry)
            elif not entry.connected and entry.place != "pinned" and time.time() - entry.seen > kept:
                self.forget(entry)
        return changed

    def _presence(self, entry: Entry, now: float) -> Presence:
        if entry.presence == "finished" or entry.replica:
            return entry.presence  # of those at other replicas, these say
        silent = now - entry.heard
        if not entry.connected:
            if entry.presence == "lost" or silent > self._timing.reconnect:
                return "lost"
            return "stale"
        if silent > self._timing.lost:
            return "lost"
        return "stale" if entry.silent_for_long(silent, self._timing.stale_intervals) else "connected"

    def _add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        entry.place = cast(Place, self.place_of(entry.run).place)
        runs = self._owners.setdefault(entry.owner, {})
        runs[entry.run] = runs.get(entry.run, 0) + 1

    def _make_room(self, owner: int, run: str) -> None:
        """For one more loader. What is forgotten is what the token itself published, or, if all have too many
        together, what the token with most loaders did; so a flood washes its own away.
        """
        limits, runs = self._limits, self._owners.get(owner, {})
        if runs.get(run, 0) >= limits.loaders_per_run:
            self._forget_gone(owner, run, f"run {run} has {limits.loaders_per_run} loaders, which is the limit")
        if sum(runs.values()) >= self.most_per_token:
            fullest = max(runs, key=lambda run: runs[run])
            self._forget_gone(owner, fullest, "") or self._forget_gone(
                owner, None, f"this token has {self.most_per_token} loaders, which is the limit"
            )
        if len(self) >= limits.loaders:
            fullest_owner = max(self._owners, key=lambda owner: sum(self._owners[owner].values()))
            self._forget_gone(fullest_owner, None, f"{limits.loaders} loaders are known, which is the limit")

    def _forget_gone(self, owner: int, run: str | None, refusal: str) -> bool:
        """Forget the loaders of a token, or of one of its runs, that are gone longest, pinned ones last; without any,
        refuse."""
        gone = [
            entry
            for entry in self
            if entry.owner == owner and (run is None or entry.run == run) and not entry.connected
        ]
        if not gone and refusal:
            raise Full(refusal)
        # Several at once, since finding the oldest means looking at all.
        for entry in heapq.nsmallest(
            len(gone) // 64 + 1, gone, key=lambda entry: (entry.place == "pinned", entry.seen)
        ):
            self.forget(entry)
        return bool(gone)
