"""Signing in and out with a browser."""

from __future__ import annotations

import math

import msgspec
from fastapi import APIRouter, Request
from penstock.protocol import Session
from starlette.responses import Response

from ..openapi import SIGNED_IN, problem_responses, returns, takes
from ..problems import Problem
from ..replies import body_of, reply
from ..routes.dependencies import TheBackend
from ..security.access import access_of, client_address
from ..security.sessions import LIFETIME


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


EXAMPLE = Session("a1b2c3d4e5f6", "0.1.0", 1789000000.0, ["view", "control"], False)
MODELS = [SignIn, Session]
router = APIRouter(prefix="/api/session", tags=["session"])


@router.post(
    "",
    summary="Sign in with a token; the answer sets a cookie",
    responses=returns(Session, "Signed in.", EXAMPLE, problems=(400, 401, 403, 408, 413, 415, 422, 429)),
    openapi_extra=takes(SignIn, SignIn("the token that `penstock dashboard` printed")),
)
async def sign_in(request: Request, backend: TheBackend) -> Response:
    access = access_of(request)
    failures = access.login_failures.of(client_address(request))
    wait = failures.wait()
    if wait:
        raise Problem(
            429,
            "too-many-failures",
            "Too many failed attempts to sign in from this address.",
            headers={"Retry-After": str(math.ceil(wait))},
        )
    token = access.keyring.find((await body_of(request, SignIn)).token.strip())
    if token is None:
        failures.take()
        raise Problem(401, "wrong-token", "This token is not known. `penstock dashboard` prints a link that has one.")
    response = reply(backend.session(token))
    response.set_cookie(
        access.cookie,
        access.sessions.start(token),
        max_age=LIFETIME,
        path=access.cookie_path,
        secure=access.cookie_secure,
        httponly=True,
        samesite="strict",
    )
    return response


@router.get(
    "",
    summary="Who am I, and what may I do",
    responses=returns(Session, "The session.", EXAMPLE, problems=(401,)),
    openapi_extra=SIGNED_IN,
)
async def current(request: Request, backend: TheBackend) -> Response:
    token = access_of(request).identify(request)
    if token is None:
        raise Problem(
            401,
            "not-signed-in",
            "Not signed in.",
            headers={"WWW-Authenticate": 'Bearer realm="penstock"'},
        )
    return reply(backend.session(token))


@router.delete(
    "",
    summary="Sign out",
    status_code=204,
    responses={204: {"description": "Signed out."}, **problem_responses(403)},
    response_class=Response,
)
async def sign_out(request: Request) -> Response:
    access = access_of(request)
    cookie = request.cookies.get(access.cookie)
    if cookie:
        access.sessions.end(cookie)
    response = Response(status_code=204)
    response.delete_cookie(
        access.cookie,
        path=access.cookie_path,
        secure=access.cookie_secure,
        httponly=True,
        samesite="strict",
    )
    return response
