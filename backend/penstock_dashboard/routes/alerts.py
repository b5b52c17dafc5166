"""What somebody should look at."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from penstock.protocol import Alert, Alerts
from starlette.responses import Response

from ..openapi import SIGNED_IN, returns
from ..replies import reply
from ..routes.dependencies import TheBackend
from ..security.access import Requires

MODELS = [Alerts]
router = APIRouter(prefix="/api/alerts", tags=["alerts"], dependencies=[Depends(Requires("view"))])

EXAMPLE = Alerts([Alert(7, "demo:0:train", "lost", 1763452800.0, "It is silent, and did not say goodbye.")])


@router.get(
    "",
    summary="Alerts that hold, and those that ended within an hour",
    responses=returns(Alerts, "The newest first; `ended` is null while one holds.", EXAMPLE, problems=(401, 403)),
    openapi_extra=SIGNED_IN,
)
async def alerts(backend: TheBackend) -> Response:
    return reply(backend.lookout.told)
