"""What is known, live: all loaders by their rows, and the one that is looked at with all its particulars. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.insight import events as happenings
from penstock.insight.commands import with_command
from penstock.insight.events import EventLine, Notable
from penstock.insight.shares import Shares, of_rates, waiting
from penstock.protocol import (
    CommandChanged,
    CommandRecord,
    Detail,
    Frame,
    Gone,
    Happened,
    History,
    LoaderDetail,
    LoaderRow,
    Overview,
    Presence,
    Rates,
    Snapshot,
    StoredEvent,
    ToViewer,
    Verdict,
)

from ..terminal.track import Track, WorkerLine, WorkerRates

MINUTE = 60.0
JUST = 0.001
"""Makes a range include its last sample."""


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


def waiting_of(row: LoaderRow) -> float | None:
    """Share of the time a loader kept its training waiting, over the last 10 s; None if it does not run."""
    shares = of_rates(row.rates) if state_of(row.presence, row.state) == "running" else None
    return None if shares is None else waiting(shares)


def workers_known(row: LoaderRow) -> bool:
    """Of a watched loader, a row does not say whether it has no workers or they are not seen."""
    return row.engine == "penstock" or row.workers > 0


def ordered(rows: Iterable[LoaderRow]) -> list[LoaderRow]:
    """Runs that live first, then the newest; within a run by name and rank."""
    newest: dict[str, tuple[bool, float]] = {}
    rows = list(rows)
    for row in rows:
        lives = state_of(row.presence, row.state) in LIVE
        live, started = newest.get(row.identity.run, (False, 0.0))
        newest[row.identity.run] = (live or lives, max(started, row.started))

    def place(row: LoaderRow) -> tuple[bool, float, str, str, int]:
        live, started = newest[row.identity.run]
        return not live, -started, row.identity.run, row.identity.name, row.identity.rank

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
        self._track = Track()
        self._workers = WorkerRates()

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.frame is None else self.frame.snapshot

    @property
    def workers(self) -> list[WorkerLine]:
        return self._workers.lines()

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

    def add_history(self, history: History) -> None:
        self._track.merge(history)

    def add_events(self, stored: Iterable[StoredEvent]) -> None:
        self._events = happenings.merged(self._events, stored)

    def add_command(self, record: CommandRecord) -> None:
        self.commands = with_command(self.commands, record)

    def average(self, seconds: float) -> Rates:
        """Mean rates over the last seconds: single samples jump too much to be read."""
        last = self._track.last
        mean = self._track.average(last - seconds, last + JUST)
        return mean or (Rates() if self.frame is None else self.frame.rates)

    def shares(self, seconds: float = MINUTE) -> Shares | None:
        if self.frame is None:
            return None
        end = self.frame.snapshot.at
        return self._track.shares(end - seconds, end + JUST)

    def change(self, at: float) -> float | None:
        """What a resize at that moment did to throughput, as a ratio: ten seconds before against what came after
        it settled; None while it is too early to say, or if there was a pause in it.
        """
        if not self._track.last - at > 8:
            return None
        before, after = self._track.average(at - 10, at), self._track.average(at + 1.5, at + 30)
        if before is None or after is None or not before.batches > 0 or max(before.paused, after.paused) > 0.02:
            return None
        return after.batches / before.batches

    def command_event(self, command: str) -> Notable | None:
        """What the loader itself told of a command; its moment is on the loader's clock."""
        found = (event for event in self._events.values() if getattr(event, "command", "") == command)
        return next(found, None)

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
            self._workers.note(detail.snapshot)
            row = detail.row
            self.frame = Frame(self.id, detail.snapshot, row.rates, row.presence, row.seen, detail.verdict)

    def _sample(self, frame: Frame) -> None:
        self._track.push(frame.snapshot.at, frame.rates)
        self._workers.note(frame.snapshot)
        self.frame = frame
        self.presence = frame.presence
