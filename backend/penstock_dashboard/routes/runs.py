"""Runs: which there are, their places in the overview, and how they go."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from penstock.protocol import KnownRun, Place, RunChange
from starlette.responses import Response

from ..commands import Asker
from ..openapi import SIGNED_IN, returns, takes
from ..replies import body_of, reply
from ..routes.dependencies import MayControl, TheBackend, not_too_fast, said_once
from ..security.access import Requires, client_address
from ..security.tokens import Token


class PlaceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run shall stand in the overview."""

    place: Place
    """shown, pinned or hidden."""


EXAMPLE = KnownRun("demo", "pinned", 2, 0, 1788999000.0, 1789000000.0)
EXAMPLE_CHANGE = RunChange(1789000000.0, "demo", "pinned", "local", "127.0.0.1", 2, "Pinned, by local (127.0.0.1)")
MODELS = [KnownRun, RunChange, PlaceRequest]

router = APIRouter(prefix="/api/runs", tags=["runs"], dependencies=[Depends(said_once)])
may_view = [Depends(Requires("view"))]
TheRun = Annotated[str, Path(description="The run's name.")]


@router.get(
    "",
    summary="All runs",
    description="Hidden ones too. Pinned ones first, then the newest.",
    responses=returns(list[KnownRun], "One line each.", [EXAMPLE], problems=(401, 403, 422)),
    openapi_extra=SIGNED_IN,
    dependencies=may_view,
)
async def runs(backend: TheBackend) -> Response:
    return reply(backend.runs.all())


@router.get(
    "/changes",
    summary="Who pinned, hid, showed and deleted runs",
    responses=returns(list[RunChange], "Newest first.", [EXAMPLE_CHANGE], problems=(401, 403, 422)),
    openapi_extra=SIGNED_IN,
    dependencies=may_view,
)
async def changes(
    backend: TheBackend,
    run: Annotated[str | None, Query(description="Only what was done to this run.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    stored = await backend.store.run_changes(run, limit)
    return reply([msgspec.Raw(record) for record in stored])


@router.put(
    "/{run}/place",
    summary="Pin a run, hide it, or show it as others are",
    responses=returns(KnownRun, "As it stands now.", EXAMPLE, problems=(400, 401, 403, 404, 408, 413, 415, 422, 429)),
    openapi_extra=takes(PlaceRequest, {"place": "hidden"}) | SIGNED_IN,
)
async def put(request: Request, backend: TheBackend, token: MayControl, run: TheRun) -> Response:
    wanted = await body_of(request, PlaceRequest)
    not_too_fast(request, token)
    return reply(await backend.runs.put(run, wanted.place, _asker(request, token)))


@router.delete(
    "/{run}",
    summary="Delete a run",
    description="Its samples, events and commands are gone for good. One with connected loaders cannot be deleted.",
    responses=returns(RunChange, "What was done.", EXAMPLE_CHANGE, problems=(401, 403, 404, 409, 422, 429)),
    openapi_extra=SIGNED_IN,
)
async def delete(request: Request, backend: TheBackend, token: MayControl, run: TheRun) -> Response:
    not_too_fast(request, token)
    return reply(await backend.runs.delete(run, _asker(request, token)))


def _asker(request: Request, token: Token) -> Asker:
    return Asker(token.name, client_address(request))
