"""Asking loaders to do something, and following what becomes of it."""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from penstock.protocol import ORDERS, CommandRecord, Order, Transition, action_of
from starlette.responses import Response

from ..commands import Asker, CommandBook
from ..core import Backend
from ..openapi import SIGNED_IN, returns, takes
from ..problems import InvalidField, Problem
from ..replies import body_of, reply
from ..routes.dependencies import MayControl, TheBackend, TheLoader, not_too_fast, said_once
from ..security.access import Requires, client_address
from ..security.tokens import Token
from ..store import CommandsAsked


def _requests(prefix: str, *fields: tuple[str, Any, Any]) -> Any:
    """Every kind of order as a body that nothing unknown may be in, with some fields more."""
    kinds = [
        msgspec.defstruct(
            f"{prefix}{kind.__name__}",
            fields,
            bases=(kind,),
            namespace={"__doc__": kind.__doc__},
            frozen=True,
            forbid_unknown_fields=True,
            tag=action,
        )
        for action, kind in ORDERS.items()
    ]
    return functools.reduce(operator.or_, kinds)


OrderRequest = _requests("Loader")
"""What to ask of one loader."""
RunOrderRequest = _requests("Run", ("name", str | None, None))
"""The same for all loaders of a run, or for those of one name, on all ranks."""


class RefusedLoader(msgspec.Struct, frozen=True):
    """A loader that was not given the command, and why."""

    loader: str
    reason: str


class RunCommand(msgspec.Struct, frozen=True):
    """What a run-wide command became: one command per loader that can do it."""

    group: str
    """`group` of all these commands."""
    commands: list[CommandRecord]
    refused: list[RefusedLoader] = []
    """Loaders that cannot do it, and why."""


EXAMPLE_REQUEST = {"action": "resize", "workers": 6}
EXAMPLE = CommandRecord(
    id="5f0c2d9e8a7b4c31",
    loader="demo:0:train",
    action="resize",
    by="local",
    origin="127.0.0.1",
    state="accepted",
    transitions=[Transition("accepted", 1789000000.0)],
    workers=6,
    before=2,
)
MODELS = [OrderRequest, RunOrderRequest, RunCommand, CommandRecord]
PROBLEMS = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429)

router = APIRouter(prefix="/api", tags=["commands"], dependencies=[Depends(said_once)])
may_view = [Depends(Requires("view"))]

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=128,
        pattern=r"^[!-~]+$",
        description="The same key with the same request is the same command, however often it is sent.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get(
    "/loaders/{loader}/commands",
    summary="Commands to one loader",
    responses=returns(list[CommandRecord], "Newest first.", [EXAMPLE], problems=(401, 403, 404, 422)),
    openapi_extra=SIGNED_IN,
    dependencies=may_view,
)
async def commands(backend: TheBackend, entry: TheLoader, limit: Limit = 100) -> Response:
    stored = await backend.store.commands(CommandsAsked(loader=entry.id, limit=limit))
    return reply([msgspec.Raw(item.record) for item in stored])


@router.post(
    "/loaders/{loader}/commands",
    summary=f"Ask something of a loader: {', '.join(ORDERS)}",
    status_code=202,
    responses=returns(CommandRecord, "Taken on; follow it at `Location`.", EXAMPLE, status=202, problems=PROBLEMS),
    openapi_extra=takes(OrderRequest, EXAMPLE_REQUEST) | SIGNED_IN,
)
async def command(
    request: Request, backend: TheBackend, token: MayControl, entry: TheLoader, key: Key = None
) -> Response:
    wanted = _order(await body_of(request, OrderRequest))
    not_too_fast(request, token)
    asker = _asker(request, token, msgspec.json.encode(wanted), f"loader {entry.id}", key)
    book = backend.commands
    repeated = await _repeated(backend, asker)
    if repeated:
        record = await _find(backend, repeated[0])
    else:
        book.check(entry, wanted)
        record = book.accept(entry, wanted, asker)
        await backend.store.committed()
        book.deliver(entry)
        backend.replicas.ordered(entry, record.id)
    return reply(record, 202, {"Location": f"{request.scope.get('penstock.prefix', '')}/api/commands/{record.id}"})


@router.get(
    "/runs/{run}/commands",
    summary="Commands to all loaders of a run",
    responses=returns(list[CommandRecord], "Newest first.", [EXAMPLE], problems=(401, 403, 422)),
    openapi_extra=SIGNED_IN,
    dependencies=may_view,
)
async def run_commands(backend: TheBackend, run: Annotated[str, Path()], limit: Limit = 100) -> Response:
    stored = await backend.store.commands(CommandsAsked(run=run, limit=limit))
    return reply([msgspec.Raw(item.record) for item in stored])


@router.post(
    "/runs/{run}/commands",
    summary=f"Ask something of all loaders of a run: {', '.join(ORDERS)}",
    description="Each rank has a command of its own; `group` ties them together.",
    status_code=202,
    responses=returns(RunCommand, "Taken on.", RunCommand("9f3a", [EXAMPLE]), status=202, problems=PROBLEMS),
    openapi_extra=takes(RunOrderRequest, {"action": "pause", "name": "train"}) | SIGNED_IN,
)
async def run_command(
    request: Request, backend: TheBackend, token: MayControl, run: Annotated[str, Path()], key: Key = None
) -> Response:
    wanted = await body_of(request, RunOrderRequest)
    not_too_fast(request, token)
    asker = _asker(request, token, msgspec.json.encode(wanted), f"run {run}", key)
    book = backend.commands
    repeated = await _repeated(backend, asker)
    if repeated:
        records = [await _find(backend, identifier) for identifier in repeated]
        return reply(RunCommand(records[0].group, records), 202)
    result = _fan_out(backend, book, run, _order(wanted), wanted.name, asker)
    await backend.store.committed()
    for record in result.commands:
        entry = backend.registry.get(record.loader)
        if entry is not None:
            book.deliver(entry)
            backend.replicas.ordered(entry, record.id)
    return reply(result, 202)


@router.get(
    "/commands/{command}",
    summary="One command and what became of it",
    responses=returns(CommandRecord, "As it stands.", EXAMPLE, problems=(401, 403, 404, 422)),
    openapi_extra=SIGNED_IN,
    dependencies=may_view,
)
async def one_command(backend: TheBackend, command: Annotated[str, Path()]) -> Response:
    return reply(await _find(backend, command))


def _order(request: Order) -> Order:
    """The order in a request."""
    kind = ORDERS[action_of(request)]
    return kind(**{name: getattr(request, name) for name in kind.__struct_fields__})


def _fan_out(
    backend: Backend, book: CommandBook, run: str, wanted: Order, name: str | None, asker: Asker
) -> RunCommand:
    entries = [entry for entry in backend.registry.of_run(run) if name in (None, entry.hello.identity.name)]
    if not entries:
        raise Problem(404, "unknown-run", f"No such loaders are known in a run “{run[:64]}”.")
    able, refused = [], []
    for entry in entries:
        try:
            book.check(entry, wanted)
            able.append(entry)
        except Problem as problem:
            refused.append(RefusedLoader(entry.id, problem.detail))
    if not able:
        errors = [InvalidField(one.loader, one.reason) for one in refused[:100]]
        raise Problem(409, "no-loader-can", "None of the run's loaders can do that.", errors=errors)
    group = hashlib.sha256(f"{asker.idempotency or id(asker)} {backend.instance}".encode()).hexdigest()[:16]
    return RunCommand(group, [book.accept(entry, wanted, asker, group) for entry in able], refused)


def _asker(request: Request, token: Token, wanted: bytes, target: str, key: str | None) -> Asker:
    fingerprint = hashlib.sha256(wanted).hexdigest()[:32]
    idempotency = f"{token.name} {target} {key}" if key else ""
    return Asker(token.name, client_address(request), idempotency, fingerprint)


async def _repeated(backend: Backend, asker: Asker) -> list[str]:
    """Ids of the commands that this very request made before, here or at a replica that may not have told of them: it
    may have been killed, and the asker come here for its answer.
    """
    if asker.idempotency and not backend.commands.repeated(asker):
        await backend.replicas.inherited.recall(asker.idempotency)
    return backend.commands.repeated(asker) or []


async def _find(backend: Backend, identifier: str) -> CommandRecord:
    record = backend.commands.find(identifier)
    if record is not None:
        return record
    stored = await backend.store.find_command(identifier)
    if stored is None:
        raise Problem(404, "unknown-command", f"No command “{identifier[:64]}” is known.")
    return msgspec.json.decode(stored.record, type=CommandRecord)
