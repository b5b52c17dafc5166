"""Is it alive, is it ready, what does it count."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from ..metrics import CONTENT_TYPE, expose
from ..openapi import SIGNED_IN, problem_responses, returns
from ..problems import Problem
from ..replies import reply
from ..routes.dependencies import TheBackend
from ..security.access import Requires
from ..settings import VERSION


class Health(msgspec.Struct, frozen=True):
    """Whether the backend works as it should."""

    status: Literal["ok", "refusing", "degraded"]
    """refusing: it works, but in the last minute something was refused because a limit was reached. degraded: it works,
    but the store fell back to memory."""
    warning: str = ""


class Status(msgspec.Struct, frozen=True):
    """The backend about itself."""

    version: str
    backend: str
    """New for every start."""
    started: float
    """Unix time, s."""
    publishers: int
    """Loaders that are connected."""
    viewers: int
    loaders: int
    """Loaders that are known."""
    open_commands: int
    store_bytes: int
    """Size of the database."""
    dropped_bytes: int
    """Bytes of records that were dropped before their time, because the database has its full size."""
    in_memory: bool
    read_only: bool
    warning: str = ""


MODELS = [Health, Status]
router = APIRouter(tags=["backend"])


@router.get(
    "/healthz",
    summary="The process answers",
    responses=returns(Health, "It does.", Health("ok")),
    name="healthz",
)
async def healthz() -> Response:
    return reply(Health("ok"))


@router.get(
    "/readyz",
    summary="The store answers",
    responses=returns(Health, "It does.", Health("ok"), problems=(503,)),
    name="readyz",
)
async def readyz(backend: TheBackend) -> Response:
    try:
        async with asyncio.timeout(5.0):
            await backend.store.committed()
    except TimeoutError:
        raise Problem(503, "store-silent", "The store did not answer within 5 s.") from None
    status: Literal["ok", "refusing", "degraded"] = "degraded" if backend.store.warning else "ok"
    if status == "ok" and backend.refusals.told:
        status = "refusing"
    return reply(Health(status, backend.warning))


@router.get(
    "/api/status",
    summary="The backend about itself",
    responses=returns(Status, "Its state.", problems=(401, 403)),
    openapi_extra=SIGNED_IN,
    dependencies=[Depends(Requires("view"))],
)
async def status(backend: TheBackend) -> Response:
    return reply(
        Status(
            version=VERSION,
            backend=backend.instance,
            started=backend.started,
            publishers=len(backend.publishers),
            viewers=len(backend.viewers),
            loaders=len(backend.registry),
            open_commands=backend.commands.open_count,
            store_bytes=await backend.store.used_bytes(),
            in_memory=backend.store.in_memory,
            read_only=backend.settings.read_only,
            dropped_bytes=backend.store.dropped,
            warning=backend.warning,
        )
    )


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    responses={
        200: {"description": "Text format 0.0.4.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problem_responses(401, 403, 422),
    },
    openapi_extra=SIGNED_IN,
)
async def metrics(
    backend: TheBackend,
    _: Annotated[object, Depends(Requires("view"))],
    workers: Annotated[bool, Query(description="With series for every worker, too.")] = False,
) -> Response:
    entries = [entry for entry in backend.registry if backend.replicas.in_charge(entry)]  # others tell of theirs
    limits = {entry.id: entry.verdict().limit for entry in entries}
    text = await asyncio.to_thread(expose, backend, entries, limits, workers)
    return Response(text, headers={"content-type": CONTENT_TYPE})
