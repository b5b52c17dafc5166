"""Events in words, as the dashboard's list has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..protocol import (
    CommandEvent,
    EpochEvent,
    ErrorEvent,
    Event,
    ProfilePart,
    Receipt,
    Spans,
    Stall,
    StoredEvent,
    TuningEvent,
    WorkerEvent,
)
from ..tuning import words as tuning
from .words import count, micros, plural

Notable = Stall | WorkerEvent | EpochEvent | CommandEvent | ErrorEvent | TuningEvent | Receipt
MOST = 500
"""Events that are kept."""
SHORT_STALL = 50_000
"""A stall shorter than this (µs) is not worth a line of its own."""


@dataclass
class EventLine:
    """An event, or a row of short stalls that are told as one."""

    at: float
    event: Notable
    stalls: int = 1
    us: int = 0

    @property
    def text(self) -> str:
        if self.stalls > 1:
            return f"{plural(self.stalls, 'short stall')}, {micros(self.us)} in all"
        return describe(self.event)

    @property
    def tone(self) -> Literal["bad", "good", "plain"]:
        event = self.event
        if isinstance(event, CommandEvent):
            return "bad" if event.state in ("rejected", "timed_out") else "good"
        if isinstance(event, Receipt):
            return {"worse": "bad", "better": "good"}.get(event.brought, "plain")  # type: ignore[return-value]
        bad = (
            isinstance(event, ErrorEvent)
            or (isinstance(event, WorkerEvent) and event.what == "died")
            or (isinstance(event, EpochEvent) and event.what == "failed")
        )
        return "bad" if bad else "plain"


def merged(have: dict[int, Notable], stored: Iterable[StoredEvent]) -> dict[int, Notable]:
    """By id, in order, each once, the newest MOST. Spans and profiles have places of their own."""
    fresh = {each.id: each.event for each in stored if not isinstance(each.event, Spans | ProfilePart)}
    if not fresh:
        return have
    return dict(sorted({**have, **fresh}.items())[-MOST:])


def lines(events: Iterable[Notable]) -> list[EventLine]:
    """Newest first. Short stalls that follow each other become one line."""
    result: list[EventLine] = []
    for event in reversed(list(events)):
        before = result[-1] if result else None
        if _is_short(event) and before is not None and _is_short(before.event):
            before.stalls += 1
            before.us += event.us if isinstance(event, Stall) else 0
            continue
        result.append(EventLine(event.at, event, us=event.us if isinstance(event, Stall) else 0))
    return result


def _is_short(event: Event) -> bool:
    return isinstance(event, Stall) and event.us < SHORT_STALL


def describe(event: Notable) -> str:
    match event:
        case Stall():
            who = f" on worker {event.worker}" if event.worker >= 0 else ""
            took = (
                f"; slowest sample {event.slowest_index} took {micros(event.slowest_us)}" if event.slowest_index else ""
            )
            held = plural(event.held_back, "finished batch", "finished batches")
            return f"Stall of {micros(event.us)}: batch {count(event.batch)}{who} held back {held}{took}"
        case WorkerEvent():
            return _worker(event)
        case EpochEvent():
            return _epoch(event)
        case CommandEvent():
            return _command(event)
        case TuningEvent():
            return tuning.describe(event)
        case Receipt():
            return event.text
        case ErrorEvent():
            return _error(event)


def _worker(event: WorkerEvent) -> str:
    name = f"Worker {event.worker} (pid {event.pid})"
    if event.what != "died":
        return f"{name} {'started' if event.what == 'born' else 'retired'}"
    how = event.signal or f"exit code {event.exitcode}"
    work = f" at batch {count(event.batch)}" if event.batch >= 0 else ""
    return f"{name} died{work}: {how}{'; its tasks went to others' if event.retried else ''}"


def _error(event: ErrorEvent) -> str:
    place = f" in worker {event.worker}" if event.worker >= 0 else ""
    batch = f" at batch {count(event.batch)}" if event.batch >= 0 else ""
    sample = f", sample {event.sample}" if event.sample else ""
    what = f"{event.type}: {event.message.partition(chr(10))[0]}" if event.message else event.type
    whose = "The training's own code" if event.where == "training" else event.where.capitalize()
    if event.where in ("collate_fn", "worker_init_fn"):
        whose = event.where
    more = f" (and {count(event.more)} like it before)" if event.more else ""
    return f"{whose} failed{place}{batch}{sample}: {what}{'; nobody caught it' if event.fatal else ''}{more}"


def _epoch(event: EpochEvent) -> str:
    if event.what == "started":
        return f"Epoch {event.epoch} started"
    verb = {"ended": "ended", "abandoned": "was left", "failed": "failed"}[event.what]
    why = f": {event.reason.partition(chr(10))[0]}" if event.what == "failed" else ""
    return f"Epoch {event.epoch} {verb} after {plural(event.batches, 'batch', 'batches')}{why}"


def _command(event: CommandEvent) -> str:
    after = event.actual if event.actual is not None else event.asked
    sizes = ["?" if size is None else str(size) for size in (event.before, after)]
    change = f" {sizes[0]} → {sizes[1]}" if event.action == "resize" else ""
    place = f" at batch {count(event.at_batch)}" if event.at_batch is not None and event.at_batch >= 0 else ""
    took = f" in {micros(event.took_us)}" if event.state == "applied" and event.took_us else ""
    # A token may be called "local" too; only a call in the training process has no command behind it.
    script = " by the tuner" if event.by == "autotune" else " by the training script"
    who = script if not event.command else f" by {event.by}" if event.by else ""
    why = f": {event.reason}" if event.reason else ""
    return f"{event.action.capitalize()}{change} {event.state.replace('_', ' ')}{place}{took}{who}{why}"
