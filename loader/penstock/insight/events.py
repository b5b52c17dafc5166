"""Events in words, as the dashboard's list has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..protocol import (
    CommandEvent,
    EpochEvent,
    ErrorEvent,
    Event,
    Note,
    ProfilePart,
    QuarantineEvent,
    Receipt,
    Spans,
    StackEvent,
    Stall,
    StoredEvent,
    TuningEvent,
    WorkerEvent,
)
from ..tuning import words as tuning
from .words import count, micros, plural

Notable = Stall | StackEvent | WorkerEvent | EpochEvent | CommandEvent | ErrorEvent | TuningEvent | Receipt | Note
MOST = 500
"""Events that are kept."""
SHORT_STALL = 50_000
"""A stall shorter than this (µs) is not worth a line of its own."""

Tone = Literal["bad", "good", "plain"]


class Telling(NamedTuple):
    """An event in words, as in `StoredEvent`."""

    text: str = ""
    tone: Tone = "plain"
    fold: str = ""
    same: str = ""


def tell(event: Event) -> Telling:
    """What is to be said of an event; nothing of those that are drawn."""
    if isinstance(event, Spans | ProfilePart | QuarantineEvent):
        return Telling()
    same = f"stall {event.at}:{event.epoch}:{event.batch}" if isinstance(event, Stall) else ""
    return Telling(describe(event), _tone(event), _fold(event), same)


def _tone(event: Notable) -> Tone:
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


def _fold(event: Notable) -> str:
    if isinstance(event, Stall):
        return "short stalls" if event.us < SHORT_STALL and not event.ongoing else ""
    if isinstance(event, WorkerEvent):
        return {"born": "workers started", "retired": "workers retired"}.get(event.what, "")
    return ""


@dataclass
class EventLine:
    """An event, or several that follow each other and are told as one."""

    at: float
    event: Notable
    telling: Telling
    number: int = 1
    us: int = 0
    """How long they took together; 0: that is not said."""

    @property
    def text(self) -> str:
        if self.number == 1 or not self.telling.fold:
            return self.telling.text
        together = f", {micros(self.us)} in all" if self.us else ""
        return f"{count(self.number)} {self.telling.fold}{together}"

    @property
    def tone(self) -> Tone:
        return self.telling.tone


def merged(have: dict[int, Notable], stored: Iterable[StoredEvent]) -> dict[int, Notable]:
    """By id, in order, each once, the newest MOST. Spans and profiles have places of their own."""
    fresh = {
        each.id: each.event for each in stored if not isinstance(each.event, Spans | ProfilePart | QuarantineEvent)
    }
    if not fresh:
        return have
    return dict(sorted({**have, **fresh}.items())[-MOST:])


def lines(events: Iterable[Notable]) -> list[EventLine]:
    """Newest first. What belongs together and follows each other is one line, and so is all that was told of one
    thing."""
    result: list[EventLine] = []
    told: set[str] = set()
    for event in reversed(list(events)):
        telling = tell(event)
        if telling.same and telling.same in told:
            continue
        told.add(telling.same)
        before, us = result[-1] if result else None, event.us if isinstance(event, Stall) else 0
        number = 1 + len(event.others) if isinstance(event, WorkerEvent) else 1
        if telling.fold and before is not None and before.telling.fold == telling.fold:
            before.number += number
            before.us += us
            continue
        result.append(EventLine(event.at, event, telling, number, us))
    return result


def describe(event: Notable) -> str:
    match event:
        case Stall():
            return _stall(event)
        case StackEvent():
            return _stack(event)
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
        case Note():
            return f"Note: {event.text}"
        case ErrorEvent():
            return _error(event)


def _stall(event: Stall) -> str:
    batch = f"batch {count(event.batch)}" + (f" on worker {event.worker}" if event.worker >= 0 else "")
    held = plural(event.held_back, "finished batch", "finished batches")
    if event.cause != "reorder_stall":
        return f"Training {'has waited' if event.ongoing else 'waited'} {micros(event.us)} for {batch}"
    if event.ongoing:
        return f"Stall of {micros(event.us)} so far: {batch} holds back {held}"
    took = f"; slowest sample {event.slowest_index} took {micros(event.slowest_us)}" if event.slowest_index else ""
    return f"Stall of {micros(event.us)}: {batch} held back {held}{took}"


def _stack(event: StackEvent) -> str:
    whose = "training" if event.worker < 0 else f"worker {event.worker} (pid {event.pid})"
    at = f", {event.state}" if event.state else ""
    batch = f" batch {count(event.batch)}" if event.state in ("fetching", "collating", "sending") else ""
    by = f", asked for by {event.by}" if event.command and event.by else ""
    return f"Stack of {whose}{at}{batch}{by}" if not event.silence else f"No stack of {whose}{by}: {event.silence}"


def _worker(event: WorkerEvent) -> str:
    if event.others:
        return f"{count(1 + len(event.others))} {_fold(event)}"
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
    then = "; nobody caught it" if event.fatal else "; the epoch goes on" if event.tolerated else ""
    return f"{whose} failed{place}{batch}{sample}: {what}{then}{more}"


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
