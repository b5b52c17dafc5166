"""Bad samples of a loader: all of them, searched, and as a list with which the next run can begin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query
from penstock.protocol import Event, Quarantined, QuarantineEvent, QuarantinePage, label
from starlette.responses import Response

from ..export import CSV, quarantine_csv
from ..openapi import SIGNED_IN, returns
from ..replies import raw_reply, reply
from ..routes.dependencies import TheBackend, TheLoader, said_once
from ..security.access import Requires
from ..store import EventRecord, EventsAsked

MODELS = [QuarantinePage]
JSON_LINES = "application/jsonl"
MOST_EVENTS = 1_000_000
"""Their bytes have a limit of their own."""

router = APIRouter(
    prefix="/api/loaders", tags=["loaders"], dependencies=[Depends(Requires("view")), Depends(said_once)]
)

EXAMPLE = QuarantinePage("demo:0:train", 2, 1, [Quarantined("17", "dataset", "OSError: file 17 is corrupt", times=2)])


@router.get(
    "/{loader}/quarantine",
    summary="Bad samples",
    description="Samples that failed, hung or ended their worker since the loader was made, each once. As `csv` or "
    "`jsonl`: all that match, as a file; the latter is what `DataLoader(quarantine=…)` reads.",
    responses=returns(QuarantinePage, "The newest first.", EXAMPLE, problems=(401, 403, 404, 422), csv=True),
    openapi_extra=SIGNED_IN,
)
async def quarantine(
    backend: TheBackend,
    entry: TheLoader,
    *,
    search: Annotated[str, Query(max_length=256, description="Words that index, error and place must have.")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 200,
    format: Annotated[Literal["json", "csv", "jsonl"], Query(description="csv, jsonl: as a file to save.")] = "json",
) -> Response:
    most = backend.settings.limits.answer_bytes
    records = await backend.store.read_events(
        EventsAsked(entry.key, entry.id, kinds=("quarantine",), limit=MOST_EVENTS, most_bytes=most)
    )
    samples = await asyncio.to_thread(_samples, records, entry.hello.started)
    matching = _matching(samples, search)
    name = f"{label(entry.id)}-quarantine"
    if format == "csv":
        return raw_reply(quarantine_csv(matching), f"{name}.csv", CSV)
    if format == "jsonl":
        return raw_reply(b"".join(map(_line, matching)), f"{name}.jsonl", JSON_LINES)
    return reply(QuarantinePage(entry.id, len(samples), len(matching), matching[: -limit - 1 : -1]))


def _samples(records: Iterable[EventRecord], since: float) -> list[Quarantined]:
    """Each index once, as it was told last; what has none, as often as it came. The oldest first."""
    named: dict[object, Quarantined] = {}
    for record in records:
        event = msgspec.json.decode(record.body, type=Event)
        if isinstance(event, QuarantineEvent) and event.at >= since:
            for place, sample in enumerate(event.found):
                named[(sample.index, sample.number) if sample.index else (record.id, place)] = sample
    return list(named.values())


def _matching(samples: list[Quarantined], search: str) -> list[Quarantined]:
    words = search.lower().split()
    if not words:
        return samples
    return [
        sample
        for sample in samples
        if all(word in f"{sample.index} {sample.error} {sample.where}".lower() for word in words)
    ]


def _line(sample: Quarantined) -> bytes:
    """As the loader writes them; only those that have an index can be known by it."""
    if not sample.index:
        return b""
    index = int(sample.index) if sample.number else sample.index
    return msgspec.json.encode({"index": index, "where": sample.where, "error": sample.error}) + b"\n"
