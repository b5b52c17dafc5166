"""Bodies in and out: msgspec both ways, so that what the routes say is what `loader/penstock/protocol.py`
describes.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from .named import to_named
from .problems import InvalidField, Problem

T = TypeVar("T")


def reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers=headers, media_type="application/json")


def named_reply(body: Any) -> Response:
    """The same for structs that travel as arrays elsewhere: here they have names."""
    return reply(to_named(body))


def raw_reply(body: bytes, filename: str = "", media_type: str = "application/json") -> Response:
    """A body that is encoded already; with a file name, one that a browser saves."""
    headers = {"content-disposition": f'attachment; filename="{filename}"'} if filename else None
    return Response(body, headers=headers, media_type=media_type)


async def body_of(request: Request, kind: type[T]) -> T:
    """The JSON body of a request. Only `application/json` is taken, which no HTML form can send."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "not-json", "The body must be application/json.")
    body = await request.body()
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$").removeprefix(".")
        if named := re.search(r"field `(\w+)`", reason):  # one that is missing, or should not be there
            field = f"{field}.{named[1]}".removeprefix(".")
        raise Problem(422, "invalid-body", "The body is not valid.", errors=[InvalidField(field, reason)]) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Problem(400, "malformed-json", f"The body is not JSON: {error}") from None
