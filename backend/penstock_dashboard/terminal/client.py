"""The dashboard's HTTP API, as far as a terminal needs it."""

from __future__ import annotations

import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from penstock.protocol import (
    CommandRecord,
    Comparison,
    KnownRun,
    LoaderDetail,
    LoaderRow,
    Order,
    Place,
    RunChange,
    Session,
    StoredEvent,
)
from penstock.telemetry.address import Address

from ..named import from_named, named
from ..terminal.options import REFUSED, UNREACHABLE, Failure
from ..terminal.targets import Target

T = TypeVar("T")
TIMEOUT = 15.0
NOTABLE = ("stall", "worker", "epoch", "command", "error", "receipt", "note")


class Refusal(Failure):
    """The dashboard answered, and the answer is no."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(REFUSED, reason)
        self.code = code
        """HTTP status."""


class RefusedLoader(msgspec.Struct, frozen=True):
    """A loader that was not given the command, and why."""

    loader: str
    reason: str


class Ordered(msgspec.Struct, frozen=True):
    """What an order became: one command per loader that can do it."""

    commands: list[CommandRecord]
    refused: list[RefusedLoader] = []


class OnceLink(msgspec.Struct, frozen=True):
    """A link that signs one browser in, once."""

    fragment: str
    url: str
    seconds: float


class Client:
    """The API over HTTP."""

    def __init__(self, find: Callable[[], Address]) -> None:
        self.find = find

    def session(self) -> Session:
        return self._get("/api/session", Session)

    def link(self) -> OnceLink:
        return self._call("/api/session/links", OnceLink, {})

    def loaders(self) -> list[LoaderRow]:
        """All of them, those of hidden runs too."""
        return self._get("/api/loaders?hidden=true", list[LoaderRow])

    def loader(self, identifier: str) -> LoaderDetail:
        return self._get(f"/api/loaders/{_part(identifier)}", LoaderDetail)

    def events(self, identifier: str, limit: int = 100) -> list[StoredEvent]:
        """The newest that are worth telling, in order; spans are not."""
        query = urlencode([*(("kind", kind) for kind in NOTABLE), ("limit", limit)])
        return self._get(f"/api/loaders/{_part(identifier)}/events?{query}", list[StoredEvent])

    def stacks(self, identifier: str) -> list[StoredEvent]:
        """The newest events that say what workers were doing when somebody asked."""
        query = urlencode({"kind": "stack", "limit": 2048})
        return self._get(f"/api/loaders/{_part(identifier)}/events?{query}", list[StoredEvent])

    def profile_parts(self, identifier: str, after: int) -> list[StoredEvent]:
        """Those that came after an event, in order."""
        query = urlencode({"kind": "profile", "after": after})
        return self._get(f"/api/loaders/{_part(identifier)}/events?{query}", list[StoredEvent])

    def commands(self, identifier: str) -> list[CommandRecord]:
        return self._get(f"/api/loaders/{_part(identifier)}/commands?limit=20", list[CommandRecord])

    def command(self, identifier: str) -> CommandRecord:
        return self._get(f"/api/commands/{_part(identifier)}", CommandRecord)

    def report(self, run: str) -> bytes:
        """A run as one HTML file."""
        return self._fetch(f"/api/runs/{_part(run)}/report")

    def compare(self, a: str, b: str) -> Comparison:
        """Two stretches of time, written as in `penstock.insight.stretches`."""
        return self._get(f"/api/compare?{urlencode({'a': a, 'b': b})}", Comparison)

    def runs(self) -> list[KnownRun]:
        return self._get("/api/runs", list[KnownRun])

    def run_changes(self, run: str | None) -> list[RunChange]:
        """What was done to runs, or to one; the newest first."""
        query = urlencode({"limit": 1000} if run is None else {"limit": 1000, "run": run})
        return self._get(f"/api/runs/changes?{query}", list[RunChange])

    def place(self, run: str, place: Place) -> KnownRun:
        return self._call(f"/api/runs/{_part(run)}/place", KnownRun, {"place": place}, method="PUT")

    def delete(self, run: str) -> RunChange:
        return self._call(f"/api/runs/{_part(run)}", RunChange, method="DELETE")

    def order(self, target: Target, order: Order) -> Ordered:
        """Ask. An answer that was lost is asked for once more under the same key, so nothing is ordered twice."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        try:
            return self._order(target, order, headers)
        except Failure as failure:
            if failure.status != UNREACHABLE:
                raise
            return self._order(target, order, headers)

    def _order(self, target: Target, order: Order, headers: dict[str, str]) -> Ordered:
        if target.id is not None:
            path = f"/api/loaders/{_part(target.id)}/commands"
            return Ordered([self._call(path, CommandRecord, order, headers)])
        wide = {**msgspec.to_builtins(order), "name": target.name}
        return self._call(f"/api/runs/{_part(target.run)}/commands", Ordered, wide, headers)

    def _get(self, path: str, kind: type[T]) -> T:
        return self._call(path, kind)

    def _call(
        self,
        path: str,
        kind: type[T],
        body: Any = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
    ) -> T:
        answer = self._fetch(path, body, headers, method)
        try:
            return from_named(msgspec.json.decode(answer, type=named(kind)), kind)
        except msgspec.DecodeError as error:
            raise Failure(
                UNREACHABLE, f"{self.find().url} answers, but not as this Penstock's dashboard: {error}"
            ) from None

    def _fetch(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> bytes:
        """`method`: if it is not GET, or POST with a body."""
        address = self.find()
        try:
            return self._fetch_from(address, path, body, headers, method)
        except Failure as failure:
            another = self.find()  # of several replicas, the next
            if failure.status != UNREACHABLE or body is not None or method or another.url == address.url:
                raise
            return self._fetch_from(another, path, body, headers, method)

    def _fetch_from(
        self, address: Address, path: str, body: Any, headers: dict[str, str] | None, method: str | None
    ) -> bytes:
        accepted = {"Accept": "application/json", **(headers or {})}
        request = urllib.request.Request(address.url + path, headers=accepted, method=method)
        if address.token:
            request.add_header("Authorization", f"Bearer {address.token}")
        if body is not None:
            request.data = msgspec.json.encode(body)
            request.add_header("Content-Type", "application/json")
        try:
            with _opener(address.url).open(request, timeout=TIMEOUT) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(address, error.code, error.read(1 << 16)) from None
        except (OSError, HTTPException) as error:
            raise unreachable(address, error) from None


def unreachable(address: Address, error: BaseException) -> Failure:
    reason = getattr(error, "reason", error)
    why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return Failure(UNREACHABLE, f"the dashboard at {address.url} does not answer ({why}). Is it running?")


def _refusal(address: Address, code: int, body: bytes) -> Failure:
    try:
        problem = json.loads(body)
        detail = str(problem["detail"])
        reasons = [str(each["reason"]) for each in problem.get("errors", ())]
    except (ValueError, KeyError, TypeError):
        return Failure(UNREACHABLE, f"{address.url} answers, but not as a Penstock dashboard (HTTP {code})")
    if code == 401:
        return Refusal(code, f"{address.url} does not know this token. Give it with --token-file or $PENSTOCK_TOKEN.")
    return Refusal(code, " ".join([detail, *(reason for reason in reasons[:8] if reason not in detail)]))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The API never redirects; whoever does must not be given the token."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def is_loopback(url: str) -> bool:
    return (urllib.parse.urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Proxies as the environment says, but never for this machine."""
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(url) else []
    return urllib.request.build_opener(_NoRedirects, *proxies)


def _part(text: str) -> str:
    return quote(text, safe="")
