"""The OpenAPI description: routes come from FastAPI, schemas from the msgspec structs that are really
sent.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from .named import named, to_named
from .problems import MEDIA_TYPE, ProblemDetails
from .settings import VERSION

DESCRIPTION = """
Everything that loaders report, and commands to them. Sign in with a token as `Authorization: Bearer …`, or by
cookie after `POST /api/session`. Two websockets are not part of OpenAPI: `/ws/publish` (loaders,
MessagePack) and `/ws/live` (viewers, JSON); their messages are in `loader/penstock/protocol.py`.
"""

_REF = "#/components/schemas/{name}"

REASONS = {
    400: "The request is malformed.",
    401: "Not signed in, or with a token that is not valid.",
    403: "The token lacks the scope, the dashboard is read-only, or the request comes from another site.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "The loader cannot do that now.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host name is not one of this server's.",
    422: "Something in the request is not valid; `errors` says what.",
    429: "Too many requests; `Retry-After` says when to come back.",
    503: "The store does not answer.",
}


def schema_of(model: Any) -> dict[str, Any]:
    """A reference to a struct, or to a list of structs."""
    (schema,), _ = msgspec.json.schema_components([named(model)], ref_template=_REF)
    return schema


def returns(
    model: Any,
    description: str,
    example: Any = None,
    *,
    status: int = 200,
    problems: tuple[int, ...] = (),
    csv: bool = False,
) -> dict[int | str, dict[str, Any]]:
    """What a route answers: a struct, and the problems it may have besides those that any route has."""
    media: dict[str, Any] = {"schema": schema_of(model)}
    if example is not None:
        media["example"] = msgspec.to_builtins(to_named(example))
    content = {"application/json": media}
    if csv:
        content["text/csv"] = {"schema": {"type": "string"}}
    return {
        status: {"description": description, "content": content},
        **problem_responses(*problems),
    }


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "description": REASONS[status],
            "content": {
                MEDIA_TYPE: {
                    "schema": schema_of(ProblemDetails),
                    "example": {
                        "type": "urn:penstock:problem:example",
                        "title": "Example",
                        "status": status,
                        "detail": REASONS[status],
                    },
                }
            },
        }
        for status in (*statuses, 421)
    }


def takes(model: Any, example: Any) -> dict[str, Any]:
    """The body that a route wants."""
    media = {"schema": schema_of(model), "example": msgspec.to_builtins(example)}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}


def install(app: FastAPI, models: list[Any], cookie: str) -> None:
    """Make `app.openapi()` complete."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = get_openapi(
                title="Penstock", version=VERSION, description=DESCRIPTION.strip(), routes=app.routes
            )
            _, components = msgspec.json.schema_components(
                [named(model) for model in (*models, ProblemDetails)], ref_template=_REF
            )
            parts = described.setdefault("components", {})
            parts.setdefault("schemas", {}).update(components)
            parts["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "For scripts and loaders."},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": cookie,
                    "description": "For browsers; set by `POST /api/session`.",
                },
            }
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
    written = b""

    async def description(_: Request) -> Response:
        """Anybody may ask, as often as they like: so it is written once."""
        nonlocal written
        written = written or msgspec.json.encode(app.openapi())
        return Response(written, media_type="application/json")

    app.add_route("/api/openapi.json", description, include_in_schema=False)


SIGNED_IN: dict[str, Any] = {"security": [{"bearer": []}, {"cookie": []}]}
