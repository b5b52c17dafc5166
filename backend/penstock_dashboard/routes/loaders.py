"""What loaders are there, how they are now, how they were."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from penstock.protocol import (
    EpochEvent,
    History,
    Identity,
    LoaderDetail,
    LoaderRow,
    Presence,
    StoredEvent,
    label,
)
from starlette.responses import Response

from ..decoding import EVENT_KINDS
from ..export import CSV, events_csv, events_json, history_csv
from ..openapi import SIGNED_IN, returns
from ..problems import InvalidField, Problem
from ..replies import named_reply, raw_reply, reply
from ..routes.dependencies import TheBackend, TheLoader, said_once
from ..security.access import Requires
from ..settings import Limits
from ..store import EventsAsked, HistoryAsked

MODELS = [LoaderRow, LoaderDetail, History, StoredEvent]
router = APIRouter(
    prefix="/api/loaders", tags=["loaders"], dependencies=[Depends(Requires("view")), Depends(said_once)]
)

EXAMPLE_ROW = LoaderRow("demo:0:train", Identity("demo", "train"), "connected", "running", 1789000000.0, 1788999000.0)
EXAMPLE_EVENT = StoredEvent(17, "demo:0:train", EpochEvent(1789000000.0, "started", 0), "Epoch 0 started")

Moment = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False)]
Format = Annotated[
    Literal["json", "csv"] | None,
    Query(description="json or csv: as a file to save. Left out: JSON, to be read."),
]
EventId = Annotated[int, Query(ge=0, le=2**62)]
Kind = Literal[
    "spans",
    "stall",
    "stack",
    "worker",
    "epoch",
    "command",
    "error",
    "quarantine",
    "profile",
    "tuning",
    "receipt",
    "note",
]


@router.get(
    "",
    summary="All loaders",
    responses=returns(list[LoaderRow], "One row each.", [EXAMPLE_ROW], problems=(401, 403, 422)),
    openapi_extra=SIGNED_IN,
)
async def loaders(
    backend: TheBackend,
    run: Annotated[str | None, Query(description="Only those of this run.")] = None,
    presence: Annotated[Presence | None, Query(description="Only those in this state.")] = None,
    hidden: Annotated[bool, Query(description="Also those of hidden runs. Those of `run` are there anyway.")] = False,
) -> Response:
    await backend.replicas.update_rows()
    return named_reply(
        [
            entry.row()
            for entry in backend.registry
            if (run is None or entry.run == run)
            and (presence is None or entry.presence == presence)
            and (hidden or run is not None or entry.place != "hidden")
        ]
    )


@router.get(
    "/{loader}",
    summary="One loader now",
    responses=returns(LoaderDetail, "All that is known of it.", problems=(401, 403, 404, 422)),
    openapi_extra=SIGNED_IN,
)
async def detail(backend: TheBackend, entry: TheLoader) -> Response:
    return named_reply(await backend.replicas.detail(entry))


@router.get(
    "/{loader}/history",
    summary="Rates over time",
    description="Mean, least and greatest value of every rate, in at most `points` buckets. "
    "Times are on the loader's clock.",
    responses=returns(History, "Parallel columns.", problems=(401, 403, 404, 422), csv=True),
    openapi_extra=SIGNED_IN,
)
async def history(
    backend: TheBackend,
    entry: TheLoader,
    *,
    start: Annotated[
        Moment | None, Query(alias="from", description="Unix time; left out: since its first record.")
    ] = None,
    end: Annotated[Moment | None, Query(alias="to", description="Unix time; left out: until now.")] = None,
    points: Annotated[int, Query(ge=1, le=Limits().history_points)] = 600,
    format: Format = None,
) -> Response:
    now = entry.now()
    until = now + 1.0 if end is None else end
    if start is not None and start > until:
        raise Problem(422, "empty-range", "`from` is after `to`.", errors=[InvalidField("from", "is after `to`")])
    asked = HistoryAsked(entry.key, entry.id, start, until, points, entry.interval, now)
    found = await backend.store.history(asked)
    if format == "csv":
        return raw_reply(history_csv(found), f"{label(entry.id)}-history.csv", CSV)
    response = reply(found)
    if format == "json":
        response.headers["content-disposition"] = f'attachment; filename="{label(entry.id)}-history.json"'
    return response


@router.get(
    "/{loader}/events",
    summary="What happened",
    description="In order of their ids. If there are more than `limit`: with `after` the oldest of them, "
    "else the newest. However many are asked for, an answer has at most 16 MiB of them.",
    responses=returns(list[StoredEvent], "Events.", [EXAMPLE_EVENT], problems=(401, 403, 404, 422), csv=True),
    openapi_extra=SIGNED_IN,
)
async def events(
    backend: TheBackend,
    entry: TheLoader,
    *,
    after: Annotated[EventId | None, Query(description="Only those with a higher id.")] = None,
    before: Annotated[EventId | None, Query(description="Only those with a lower id.")] = None,
    kind: Annotated[list[Kind] | None, Query(description="Only these kinds.", max_length=len(EVENT_KINDS))] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    format: Format = None,
) -> Response:
    records = await backend.store.read_events(
        EventsAsked(
            entry.key,
            entry.id,
            after or 0,
            before,
            kind or (),
            limit,
            newest=after is None,
            most_bytes=backend.settings.limits.answer_bytes,
        )
    )
    body = await asyncio.to_thread(events_csv if format == "csv" else events_json, records)
    if format == "csv":
        return raw_reply(body, f"{label(entry.id)}-events.csv", CSV)
    return raw_reply(body, f"{label(entry.id)}-events.json" if format == "json" else "")
