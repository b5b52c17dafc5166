"""A run as one file that can be sent to somebody."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path
from penstock.protocol import Event, label
from starlette.responses import Response

from ..core import Backend
from ..openapi import SIGNED_IN, problem_responses
from ..problems import Problem
from ..registry import Entry
from ..replies import raw_reply
from ..report.chapters import Chapter
from ..report.page import page, waits
from ..routes.dependencies import TheBackend, said_once
from ..security.access import Requires
from ..store import EventsAsked, HistoryAsked

MODELS: list[Any] = []
HTML = "text/html; charset=utf-8"
MOST_CHAPTERS = 32
"""Loaders that have a chapter of their own; the others are in the table."""
POINTS = 600
MOST_EVENTS = 2000
MOST_BYTES = 2 << 20
"""Of one loader's events."""
KINDS = ("stall", "stack", "worker", "epoch", "command", "error", "profile", "tuning", "receipt", "note")

router = APIRouter(prefix="/api/runs", tags=["runs"], dependencies=[Depends(Requires("view")), Depends(said_once)])


@router.get(
    "/{run}/report",
    summary="A report of a run",
    description="One HTML file with charts, verdicts, receipts, profile and events. It needs no network and no script.",
    responses={
        200: {"description": "The report, as a file to save.", "content": {"text/html": {}}},
        **problem_responses(401, 403, 404, 422),
    },
    openapi_extra=SIGNED_IN,
)
async def report(backend: TheBackend, run: Annotated[str, Path(description="The run's name.")]) -> Response:
    entries = backend.registry.of_run(run)
    if not entries:
        raise Problem(404, "unknown-run", f"No run “{run[:256]}” is known. GET /api/loaders lists all loaders.")
    await backend.replicas.update_rows()
    rows = {entry.id: entry.row() for entry in entries}
    # Whoever keeps training waiting most comes first: with thousands of ranks only some have room.
    chosen = sorted(entries, key=lambda entry: -waits(rows[entry.id]))[:MOST_CHAPTERS]
    chapters = [await _chapter(backend, entry) for entry in entries if entry in chosen]
    text = await asyncio.to_thread(page, run, time.time(), list(rows.values()), chapters)
    return raw_reply(text.encode(), f"{label(run)}-report.html", HTML)


async def _chapter(backend: Backend, entry: Entry) -> Chapter:
    store, now = backend.store, entry.now()
    history = await store.history(HistoryAsked(entry.key, entry.id, None, now + 1.0, POINTS, entry.interval, now))
    records = await store.read_events(
        EventsAsked(entry.key, entry.id, kinds=KINDS, limit=MOST_EVENTS, most_bytes=MOST_BYTES)
    )
    events = [msgspec.json.decode(record.body, type=Event) for record in records]
    return Chapter(await backend.replicas.detail(entry), history, events)
