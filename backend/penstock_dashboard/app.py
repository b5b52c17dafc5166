"""The application: every route, every guard, and the backend's life tied to the server's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from . import openapi, problems
from .core import Backend
from .routes import (
    alerts,
    commands,
    comparisons,
    health,
    loaders,
    pages,
    predictions,
    quarantine,
    reports,
    runs,
    session,
    sockets,
)
from .security.access import Access
from .security.gate import Gate
from .security.links import Links
from .security.tokens import Keyring
from .settings import VERSION, Settings


def create_app(
    settings: Settings, keyring: Keyring, backend: Backend | None = None, links: Links | None = None
) -> ASGIApp:
    """The whole backend as one ASGI application."""
    backend = backend or Backend(settings)
    access = Access(settings, keyring, links or Links(backend.store, keyring))
    access.sessions.on_end = backend.replicas.signed_out
    backend.replicas.on_signed_out = access.sessions.ended
    return Gate(create_api(settings, access, backend), settings, access)


def create_api(settings: Settings, access: Access, backend: Backend) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await backend.start()
        try:
            yield
        finally:
            await backend.stop()

    app = FastAPI(
        title="Penstock",
        version=VERSION,
        lifespan=lifespan,
        openapi_url=None,  # `openapi.install` has its own
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.backend = backend
    backend.admits = lambda token: access.keyring.named(token.name) == token
    app.state.access = access
    problems.install(app)
    for module in (
        health,
        session,
        loaders,
        predictions,
        quarantine,
        commands,
        runs,
        comparisons,
        reports,
        alerts,
        sockets,
    ):
        app.include_router(module.router)
    described = (health, session, loaders, predictions, quarantine, commands, runs, comparisons, reports, alerts)
    models = [model for module in described for model in module.MODELS]
    openapi.install(app, models, access.cookie)
    app.include_router(pages.make_router(settings.root_path))
    return app
