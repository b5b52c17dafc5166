"""Which stretch of time is meant: of a loader all of it, an epoch, a time, before or after a change of workers. Pure.

    demo:0:train                                  all that is stored of a loader
    demo                                          of a run: of the loader of its first rank that yielded most
    demo:0:train@epoch:3                          its epoch 3
    demo:0:train@1789000000.00-1789000060.00      a time, on the loader's clock
    demo:0:train@before:1789000042.5              before the last resize up to that moment
    demo:0:train@after:1789000042.5               after it

Before and after a resize belongs only what is like it: not what lies beyond the resize, pause or epoch before or after,
nor the first moments with another number of workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from ..protocol import CommandEvent, EpochEvent, Event
from .words import count, duration

LONGEST = 120.0
"""Seconds before and after a change that are looked at."""
SHORTEST = 3.0
"""Edges that are nearer than this, in seconds, do not count: too little would be left."""
SETTLING = 1.0
"""Seconds after a change that do not count."""
SLACK = 0.5
"""Seconds by which a change may be later than the moment that names it."""

_FORM = re.compile(
    r"(?P<who>[A-Za-z0-9._-]{1,64}(?::\d{1,9}:[A-Za-z0-9._-]{1,64})?)"
    r"(?:@(?:epoch:(?P<epoch>\d{1,9})|(?P<side>before|after):(?P<at>\d{1,11}(?:\.\d{1,6})?)"
    r"|(?P<start>\d{1,11}(?:\.\d{1,6})?)-(?P<end>\d{1,11}(?:\.\d{1,6})?)))?"
)


class Asked(NamedTuple):
    """A stretch as somebody asked for it."""

    who: str
    """A loader's id, or the name of a run."""
    epoch: int | None = None
    side: Literal["before", "after"] | None = None
    at: float = 0.0
    """Of a `side`: a moment from which the last resize is looked for."""
    start: float | None = None
    end: float | None = None


class Stretch(NamedTuple):
    """A stretch that was found, on the loader's clock."""

    start: float | None
    """None: from the first record on."""
    end: float | None
    """None: up to the last one."""
    title: str
    """What it is, in a few words."""


def parse(text: str) -> Asked:
    """Raises `ValueError` with words for whoever asked."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"“{text[:128]}” names no stretch of time. One is a loader (run:rank:name) or a run, and behind an @ "
            "epoch:N, FROM-TO in Unix seconds, before:AT or after:AT a resize."
        )
    start, end = (None if found[name] is None else float(found[name]) for name in ("start", "end"))
    if start is not None and end is not None and end - start < 0.1:
        raise ValueError(f"“{text[:128]}” ends before it begins, or is shorter than 0.1 s.")
    side: Literal["before", "after"] | None = "before" if found["side"] == "before" else "after"
    return Asked(
        found["who"],
        None if found["epoch"] is None else int(found["epoch"]),
        side if found["side"] else None,
        float(found["at"] or 0.0),
        start,
        end,
    )


def find(asked: Asked, events: Sequence[Event]) -> Stretch:
    """Where it is, by the loader's epochs and commands, in order; raises `ValueError` if it is nowhere."""
    if asked.epoch is not None:
        return _epoch(asked.epoch, events)
    if asked.side is not None:
        return _beside(asked.side, asked.at, events)
    if asked.start is not None and asked.end is not None:
        return Stretch(asked.start, asked.end, f"a stretch of {duration(asked.end - asked.start)}")
    return Stretch(None, None, "all that is stored")


def _epoch(number: int, events: Sequence[Event]) -> Stretch:
    epochs = [event for event in events if isinstance(event, EpochEvent)]
    begun = [place for place, event in enumerate(epochs) if event.what == "started" and event.epoch == number]
    if not begun:
        known = sorted({event.epoch for event in epochs if event.what == "started"})
        which = f"known are {count(known[0])} to {count(known[-1])}" if known else "none is known"
        raise ValueError(f"The beginning of epoch {count(number)} is not stored; {which}.")
    after = epochs[begun[-1] + 1 :]
    return Stretch(epochs[begun[-1]].at, after[0].at if after else None, f"epoch {count(number)}")


def _beside(side: Literal["before", "after"], at: float, events: Sequence[Event]) -> Stretch:
    resizes = [each for each in _applied(events) if each.action == "resize" and each.at <= at + SLACK]
    if not resizes:
        raise ValueError("No resize is stored at that moment or before it.")
    change = resizes[-1]
    workers = f"{change.before} → {change.actual} workers"
    begun = change.at - change.took_us * 1e-6
    if side == "before":
        start = max([begun - LONGEST, *_edges(events, lambda edge: edge < begun - SHORTEST)])
        return Stretch(start, begun, f"before {workers}")
    settled = change.at + SETTLING
    end = min([settled + LONGEST, *_edges(events, lambda edge: edge > settled + SHORTEST)])
    return Stretch(settled, end, f"after {workers}")


def _applied(events: Sequence[Event]) -> list[CommandEvent]:
    return [event for event in events if isinstance(event, CommandEvent) and event.state == "applied"]


def _edges(events: Sequence[Event], wanted: Callable[[float], bool]) -> list[float]:
    """Moments at which something else begins: an epoch or its end, a resize, a pause or its end."""
    steered = [each.at for each in _applied(events) if each.action in ("resize", "pause", "resume")]
    epochs = [event.at for event in events if isinstance(event, EpochEvent)]
    return [at for at in [*steered, *epochs] if wanted(at)]
