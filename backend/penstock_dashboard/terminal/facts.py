"""What is known, live: all loaders by their rows, and the one that is looked at with all its particulars. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.insight import events as happenings
from penstock.insight.commands import with_command
from penstock.insight.events import EventLine, Notable
from penstock.insight.shares import Shares, of_rates, of_times
from penstock.protocol import (
    CommandChanged,
    CommandRecord,
    Detail,
    Frame,
    Gone,
    Happened,
    LoaderDetail,
    LoaderRow,
    Overview,
    Presence,
    Rates,
    Receipt,
    Snapshot,
    StoredEvent,
    ToViewer,
    Verdict,
    Worker,
    WorkerRates,
)

from ..terminal.targets import Target

WorkerLine = tuple[Worker, WorkerRates]
"""A worker, and what it did over the last seconds."""


def applied(rows: dict[str, LoaderRow], message: Overview) -> dict[str, LoaderRow]:
    """Rows after a message. A complete overview replaces all, so what it lacks is gone."""
    kept = {} if message.complete else rows
    changed = {**kept, **{row.id: row for row in message.rows}}
    return {identifier: row for identifier, row in changed.items() if identifier not in message.removed}


def state_of(presence: Presence, state: str) -> str:
    """What a person calls the state: the connection's if that is broken, else the loader's own."""
    if state == "failed":
        return "failed"
    if presence == "finished" or state == "closed":
        return "finished"
    return presence if presence in ("stale", "lost") else state


LIVE = ("running", "paused", "idle")
"""States of a loader that is there."""


def workers_known(row: LoaderRow) -> bool:
    """Whether it is seen how many there are: not of everything that is watched."""
    return "workers" not in row.unknown


def wanted(row: LoaderRow, target: Target | None) -> bool:
    """Whether it is to be shown: what was asked for by name, else everything but hidden runs."""
    return row.place != "hidden" if target is None else target.matches(row)


def ordered(rows: Iterable[LoaderRow]) -> list[LoaderRow]:
    """Runs that are pinned first, then those that live, then the newest; within a run by name and rank."""
    newest: dict[str, tuple[bool, float]] = {}
    rows = list(rows)
    for row in rows:
        lives = state_of(row.presence, row.state) in LIVE
        live, started = newest.get(row.identity.run, (False, 0.0))
        newest[row.identity.run] = (live or lives, max(started, row.started))

    def place(row: LoaderRow) -> tuple[bool, bool, float, str, str, int]:
        live, started = newest[row.identity.run]
        unpinned = row.place != "pinned"
        return unpinned, not live, -started, row.identity.run, row.identity.name, row.identity.rank

    return sorted(rows, key=place)


class LoaderFacts:
    """Everything about one loader that the terminal shows."""

    def __init__(self, identifier: str) -> None:
        self.id = identifier
        self.detail: LoaderDetail | None = None
        self.frame: Frame | None = None
        self.presence: Presence = "connected"
        self.gone = False
        self.commands: list[CommandRecord] = []
        self._events: dict[int, Notable] = {}

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.frame is None else self.frame.snapshot

    @property
    def workers(self) -> list[WorkerLine]:
        if self.frame is None:
            return []
        workers, rates = self.frame.snapshot.workers, self.frame.workers
        return [(worker, rates[place] if place < len(rates) else WorkerRates()) for place, worker in enumerate(workers)]

    @property
    def events(self) -> list[EventLine]:
        return happenings.lines(self._events.values())

    @property
    def last_event(self) -> int:
        return max(self._events, default=0)

    def receive(self, message: ToViewer) -> None:
        match message:
            case Detail(detail) if detail.row.id == self.id:
                self._take(detail)
            case Frame(loader) if loader == self.id:
                self._sample(message)
            case Happened(events):
                self.add_events(each for each in events if each.loader == self.id)
            case CommandChanged(command) if command.loader == self.id:
                self.add_command(command)
            case Gone(loader) if loader == self.id:
                self.gone = True

    def add_events(self, stored: Iterable[StoredEvent]) -> None:
        self._events = happenings.merged(self._events, stored)

    def add_command(self, record: CommandRecord) -> None:
        self.commands = with_command(self.commands, record)

    @property
    def recent(self) -> Rates:
        """Rates over the last 10 s: single samples jump too much to be read."""
        return Rates() if self.frame is None else self.frame.recent

    @property
    def over(self) -> bool:
        """Nothing more comes: what is shown is the last epoch."""
        state = None if self.snapshot is None else self.snapshot.state
        return self.presence in ("finished", "lost") or state in ("finished", "failed", "closed")

    @property
    def shares(self) -> Shares | None:
        """Where the training thread's time went lately, or in the whole last epoch if that is over."""
        if self.frame is None:
            return None
        return of_times(self.frame.snapshot.epoch_times) if self.over else of_rates(self.frame.recent)

    def receipt(self, command: str) -> Receipt | None:
        """What a command brought."""
        return next((e for e in self._events.values() if isinstance(e, Receipt) and e.command == command), None)

    @property
    def verdict(self) -> Verdict | None:
        """What limits, as the dashboard says. The loader's last frame knows nothing of its end; a detail does."""
        if self.frame is None or self.detail is None:
            return None
        return self.frame.verdict if self.presence == "connected" else self.detail.verdict

    def _take(self, detail: LoaderDetail) -> None:
        self.gone = False
        self.detail = detail
        self.presence = detail.row.presence
        if detail.snapshot is not None and self.frame is None:
            row, snapshot = detail.row, detail.snapshot
            known = (row.rates, row.presence, row.seen, detail.verdict, row.rates)
            self.frame = Frame(self.id, snapshot, *known, machines=detail.machines)

    def _sample(self, frame: Frame) -> None:
        self.frame = frame
        self.presence = frame.presence
