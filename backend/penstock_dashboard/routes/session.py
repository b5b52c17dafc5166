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
from ..security.access import access_of, client_address, not_signed_in, page_of
from ..security.links import LIFETIME as LINK_LIFETIME
from ..security.links import fragment
from ..security.sessions import LIFETIME


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of the two."""

    token: str = ""
    once: str = ""
    """The code of a link that signs in once."""


class SignedIn(msgspec.Struct, frozen=True):
    """The answer to a sign-in."""

    session: Session
    page: str
    """The page's half of the session, to be sent as `X-Penstock-Page`: the cookie is worth nothing without it."""


class OnceLink(msgspec.Struct, frozen=True):
    """A link that signs one browser in, once."""

    fragment: str
    """What to put behind the dashboard's address and a slash."""
    url: str
    """That address, if people use another one than programs do."""
    seconds: float
    """For how long it can be used."""


EXAMPLE = Session("a1b2c3d4e5f6", "0.1.0", 1789000000.0, ["view", "control"], False)
MODELS = [SignIn, SignedIn, Session, OnceLink]
router = APIRouter(prefix="/api/session", tags=["session"])


@router.post(
    "",
    summary="Sign in with a token or a one-time link; the answer sets a cookie",
    responses=returns(
        SignedIn, "Signed in.", SignedIn(EXAMPLE, "f0e1d2"), problems=(400, 401, 403, 408, 413, 415, 422, 429)
    ),
    openapi_extra=takes(SignIn, SignIn("a token, as `penstock tokens add` prints one")),
)
async def sign_in(request: Request, backend: TheBackend) -> Response:
    access = access_of(request)
    given = await body_of(request, SignIn)
    # Whoever has a good token gets in, however many bad ones were tried from the same address: only those wait.
    token = await access.links.use(given.once) if given.once else access.keyring.find(given.token.strip())
    if token is None or access.keyring.named(token.name) != token:
        wait = access.login_failures.of(client_address(request)).take()
        if wait:
            raise Problem(
                429,
                "too-many-failures",
                "Too many failed attempts to sign in from this address.",
                headers={"Retry-After": str(math.ceil(wait))},
            )
        if given.once:
            raise Problem(401, "used-link", "This link was used before or is too old. `penstock open` makes another.")
        raise Problem(401, "wrong-token", "This token is not known. `penstock open` makes a link that signs in.")
    cookie, page = access.sessions.start(token)
    response = reply(SignedIn(backend.session(token), page))
    response.set_cookie(
        access.cookie,
        cookie,
        max_age=LIFETIME,
        path=access.cookie_path,
        secure=access.cookie_secure,
        httponly=True,
        samesite="strict",
    )
    return response


@router.post(
    "/links",
    summary="Make a link that signs a browser in, once, with the scopes of this token",
    responses=returns(OnceLink, "The link.", OnceLink("#once=f0e1d2", "", 600.0), problems=(401, 403)),
    openapi_extra=SIGNED_IN,
)
async def make_link(request: Request) -> Response:
    access = access_of(request)
    token = access.identify(request)
    if token is None:
        raise not_signed_in()
    return reply(OnceLink(fragment(await access.links.make(token)), access.public_url, LINK_LIFETIME))


@router.get(
    "",
    summary="Who am I, and what may I do",
    responses=returns(Session, "The session.", EXAMPLE, problems=(401,)),
    openapi_extra=SIGNED_IN,
)
async def current(request: Request, backend: TheBackend) -> Response:
    token = access_of(request).identify(request)
    if token is None:
        raise not_signed_in()
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
        access.sessions.end(cookie, page_of(request))
    response = Response(status_code=204)
    response.delete_cookie(
        access.cookie,
        path=access.cookie_path,
        secure=access.cookie_secure,
        httponly=True,
        samesite="strict",
    )
    return response
