"""What routes ask for in their signatures."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import Depends, Path, Request

from ..core import Backend
from ..problems import InvalidField, Problem
from ..registry import Entry
from ..security.access import Requires, access_of
from ..security.tokens import Token


def backend_of(request: Request) -> Backend:
    backend = request.app.state.backend
    assert isinstance(backend, Backend)
    return backend


TheBackend = Annotated[Backend, Depends(backend_of)]
MayView = Annotated[Token, Depends(Requires("view"))]
MayControl = Annotated[Token, Depends(Requires("control"))]


def loader_of(
    request: Request,
    loader: Annotated[str, Path(description="The loader's id, `run:rank:name`.", examples=["demo:0:train"])],
) -> Entry:
    entry = backend_of(request).registry.get(loader)
    if entry is None:
        raise Problem(404, "unknown-loader", f"No loader “{loader[:256]}” is known. GET /api/loaders lists them all.")
    return entry


TheLoader = Annotated[Entry, Depends(loader_of)]


def not_too_fast(request: Request, token: Token) -> None:
    """Raise a problem if a token asks for changes more often than it may."""
    wait = access_of(request).commands.of(token.name).take()
    if wait:
        raise Problem(
            429,
            "too-many-commands",
            f"The token “{token.name}” sends commands too fast.",
            headers={"Retry-After": str(math.ceil(wait))},
        )


def said_once(request: Request) -> None:
    """A parameter that is given twice would be taken by its last value: the caller meant something else."""
    repeated = [name for name in request.query_params if name != "kind" and len(request.query_params.getlist(name)) > 1]
    if repeated:
        errors = [InvalidField(name, "is given more than once") for name in repeated]
        raise Problem(422, "invalid-request", "Each of these parameters has one value.", errors=errors)
