"""What other numbers of workers would bring, by a replay of what the loader recorded; and what was measured."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query
from penstock.insight.replay import predict_range, why_not, worth_asking
from penstock.protocol import MAX_WORKERS, Event, Load, Measured, Prediction, Predictions, Receipt
from starlette.responses import Response

from ..openapi import SIGNED_IN, returns
from ..problems import InvalidField, Problem
from ..replies import reply
from ..routes.dependencies import TheBackend, TheLoader, said_once
from ..security.access import Requires
from ..store import EventRecord, EventsAsked

MODELS = [Predictions]
MOST_NUMBERS = 12
"""Numbers of workers that are looked at for one request: more would take longer than 100 ms."""
MOST_RECEIPTS = 32

router = APIRouter(
    prefix="/api/loaders", tags=["loaders"], dependencies=[Depends(Requires("view")), Depends(said_once)]
)

EXAMPLE = Predictions("demo:0:train", 4, True, "", [Prediction(16, 185.0, 171.0, 196.0, 0.02)])


@router.get(
    "/{loader}/predictions",
    summary="What other numbers of workers would bring",
    description="Batches a second that training would get and the share of the time in which it would wait, each with "
    "the interval in which it is nine times out of ten. `enough` is false while too little was seen. "
    f"At most {MOST_NUMBERS} numbers are looked at.",
    responses=returns(Predictions, "By number of workers.", EXAMPLE, problems=(401, 403, 404, 422)),
    openapi_extra=SIGNED_IN,
)
async def predictions(
    backend: TheBackend,
    entry: TheLoader,
    *,
    workers: Annotated[
        str | None,
        Query(
            max_length=128,
            description="Numbers, `4,8,16`, or a range, `1-16`. Left out: from half to four times those there are.",
        ),
    ] = None,
    memory_budget: Annotated[
        int | None, Query(ge=1, le=2**62, description="As if finished batches had so many bytes.")
    ] = None,
    ordinary_samples: Annotated[
        bool, Query(description="As if the slowest 1 % of samples took no longer than others.")
    ] = False,
) -> Response:
    load, most = await backend.replicas.load(entry), min(entry.hello.config.max_workers or MAX_WORKERS, MAX_WORKERS)
    now = load.workers if load is not None else 0
    numbers = worth_asking(now, most) if workers is None else _numbers(workers, most)
    records = await backend.store.read_events(EventsAsked(entry.key, entry.id, kinds=("receipt",), limit=MOST_RECEIPTS))
    reason = why_not(load)
    found = [] if reason else await asyncio.to_thread(_predict, load, numbers, memory_budget, ordinary_samples)
    return reply(Predictions(entry.id, now, not reason, reason, found, _measured(records)))


def _predict(load: Load | None, numbers: list[int], memory_budget: int | None, ordinary: bool) -> list[Prediction]:
    return predict_range(load, numbers, memory_budget=memory_budget, ordinary_samples=ordinary)


def _measured(records: list[EventRecord]) -> list[Measured]:
    measured: list[Measured] = []
    for record in records:
        event = msgspec.json.decode(record.body, type=Event)
        if isinstance(event, Receipt):
            if event.measured_before is not None:
                measured.append(Measured(event.at, event.before, event.measured_before))
            measured.append(Measured(event.at, event.after, event.measured))
    return measured


def _numbers(text: str, most: int) -> list[int]:
    if match := re.fullmatch(r"(\d{1,6})-(\d{1,6})", text):
        low, high = (max(1, min(int(part), most)) for part in match.groups())
        step = max(1.0, (high - low) / (MOST_NUMBERS - 1))
        return sorted({round(low + place * step) for place in range(MOST_NUMBERS) if low + place * step <= high + 0.5})
    if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        numbers = sorted({int(part) for part in text.split(",")})
        if len(numbers) <= MOST_NUMBERS and numbers[0] >= 1 and numbers[-1] <= most:
            return numbers
    raise Problem(
        422,
        "invalid-request",
        f"`workers` is a list like 4,8,16 of at most {MOST_NUMBERS} numbers, or a range like 1-16; from 1 to {most}.",
        errors=[InvalidField("workers", f"must be up to {MOST_NUMBERS} numbers from 1 to {most}")],
    )
