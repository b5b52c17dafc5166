"""Errors of the HTTP API, as RFC 9457 problem details."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .store.database import Unavailable

MEDIA_TYPE = "application/problem+json"


class InvalidField(msgspec.Struct, frozen=True):
    """One field of a request that cannot be meant."""

    field: str
    """Where: a parameter's name or a path in the body."""
    reason: str


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong, for people and programs (RFC 9457)."""

    type: str
    """Names the kind of problem; compare this, not the text."""
    title: str
    status: int
    detail: str = ""
    """What happened, to what, and what to do."""
    errors: list[InvalidField] = []


class Problem(Exception):
    """Raised anywhere below a route; becomes the response."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: list[InvalidField] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.errors = errors or []
        self.headers = headers or {}

    def body(self) -> bytes:
        title = HTTPStatus(self.status).phrase
        return msgspec.json.encode(
            ProblemDetails(f"urn:penstock:problem:{self.kind}", title, self.status, self.detail, self.errors)
        )

    def response(self) -> Response:
        return Response(self.body(), self.status, media_type=MEDIA_TYPE, headers=self.headers)


def install(app: FastAPI) -> None:
    """Make every error of the app a problem."""

    async def problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error.response()

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        return Problem(error.status_code, kind, str(error.detail), headers=dict(error.headers or {})).response()

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return Problem(
            422,
            "invalid-request",
            "Some parameters are not valid.",
            errors=[_field(e) for e in error.errors()],
        ).response()

    async def unavailable(_: Request, error: Exception) -> Response:
        return Problem(503, "store-silent", str(error), headers={"Retry-After": "1"}).response()

    async def unforeseen(_: Request, _error: Exception) -> Response:
        return Problem(500, "internal", "The backend failed at this request; its log says why.").response()

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Unavailable, unavailable)
    app.add_exception_handler(Exception, unforeseen)


def _field(error: dict[str, Any]) -> InvalidField:
    where = ".".join(str(part) for part in error.get("loc", ())[1:])
    return InvalidField(where, str(error.get("msg", "")))
