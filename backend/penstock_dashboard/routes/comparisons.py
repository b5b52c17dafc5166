"""Two stretches of time side by side: of one loader, or of two."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query
from penstock.insight import compare, stretches
from penstock.insight.compare import Means
from penstock.insight.numbers import NUMBERS
from penstock.insight.stretches import Asked
from penstock.protocol import ComparedStretch, Comparison, Event
from starlette.responses import Response

from ..core import Backend
from ..openapi import SIGNED_IN, returns
from ..problems import InvalidField, Problem
from ..registry import Entry
from ..replies import named_reply
from ..routes.dependencies import TheBackend, said_once
from ..security.access import Requires
from ..store import EventsAsked, HistoryAsked

MODELS = [Comparison]
POINTS = 400
MOST_EVENTS = 10_000
router = APIRouter(prefix="/api", tags=["runs"], dependencies=[Depends(Requires("view")), Depends(said_once)])

Spec = Annotated[
    str,
    Query(
        max_length=256,
        examples=["demo:0:train@epoch:3"],
        description="A loader (`run:rank:name`) or a run, and behind an `@` which time: `epoch:3`, `FROM-TO` in Unix "
        "seconds on the loader's clock, `before:AT` or `after:AT` the last resize up to a moment. Without: all.",
    ),
]


@router.get(
    "/compare",
    summary="Two stretches of time side by side",
    responses=returns(Comparison, "Numbers, how they differ, and what is drawn.", problems=(401, 403, 404, 422)),
    openapi_extra=SIGNED_IN,
)
async def compared(backend: TheBackend, a: Spec, b: Spec) -> Response:
    first, second = _asked("a", a), _asked("b", b)
    left, left_means = await _stretch(backend, "a", a, first)
    right, right_means = await _stretch(backend, "b", b, second)
    numbers = compare.numbers(left_means, right_means)
    sentence = compare.sentence(left_means, right_means, numbers)
    return named_reply(Comparison(left, right, sentence, numbers))


def _asked(name: str, text: str) -> Asked:
    try:
        return stretches.parse(text)
    except ValueError as error:
        raise _invalid(name, error) from None


def _invalid(name: str, error: ValueError) -> Problem:
    return Problem(422, "invalid-request", str(error), errors=[InvalidField(name, str(error))])


async def _stretch(backend: Backend, name: str, text: str, asked: Asked) -> tuple[ComparedStretch, Means]:
    entry = _entry(backend, asked.who)
    store, now = backend.store, entry.now()
    records = await store.read_events(EventsAsked(entry.key, entry.id, kinds=("epoch", "command"), limit=MOST_EVENTS))
    events = [msgspec.json.decode(record.body, type=Event) for record in records]
    try:
        found = stretches.find(asked, events)
    except ValueError as error:
        raise _invalid(name, error) from None
    end = now + 1.0 if found.end is None else found.end
    history = await store.history(HistoryAsked(entry.key, entry.id, found.start, end, POINTS, entry.interval, now))
    snapshot = entry.snapshot
    unknown = [] if snapshot is None or isinstance(snapshot.unknown, msgspec.UnsetType) else snapshot.unknown
    unseen = {number.name for number in NUMBERS if snapshot is not None and not snapshot.knows(number.field)}
    means = compare.measure(history, frozenset(unseen))
    window = 0 if snapshot is None else snapshot.queues.window
    verdict = compare.verdict(means, entry.hello.config, unknown, window)
    at = history.at
    start = found.start if found.start is not None else at[0] if at else 0.0
    end = found.end if found.end is not None else at[-1] if at else start
    return ComparedStretch(text, entry.id, found.title, start, end, means.seconds, verdict, history), means


def _entry(backend: Backend, who: str) -> Entry:
    """The loader, or of a run the one of its first rank that yielded most."""
    entry = backend.registry.get(who)
    if entry is not None:
        return entry
    entries = backend.registry.of_run(who)
    if not entries:
        raise Problem(404, "unknown-loader", f"No loader and no run “{who[:256]}” is known.")
    first = [each for each in entries if each.hello.identity.rank == entries[0].hello.identity.rank]
    return max(first, key=_yielded)


def _yielded(entry: Entry) -> int:
    snapshot = entry.snapshot
    return 0 if snapshot is None else snapshot.batches
