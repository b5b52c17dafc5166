"""The HTTP API as a stranger meets it: described completely, failing politely."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from penstock.protocol import EpochEvent, Stall
from penstock_dashboard import problems
from penstock_dashboard.problems import MEDIA_TYPE
from penstock_dashboard.routes.pages import make_router
from penstock_dashboard.settings import Limits, Settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.backend.harness import BRISK, Address, Running, bearer, serving
from tests.patience import PATIENCE

CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


OPERATIONS = [
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/api/status"),
    ("get", "/api/session"),
    ("post", "/api/session"),
    ("delete", "/api/session"),
    ("post", "/api/session/links"),
    ("get", "/api/loaders"),
    ("get", "/api/loaders/{loader}"),
    ("get", "/api/loaders/{loader}/history"),
    ("get", "/api/loaders/{loader}/predictions"),
    ("get", "/api/loaders/{loader}/events"),
    ("get", "/api/loaders/{loader}/quarantine"),
    ("get", "/api/loaders/{loader}/commands"),
    ("post", "/api/loaders/{loader}/commands"),
    ("get", "/api/compare"),
    ("get", "/api/runs"),
    ("get", "/api/runs/changes"),
    ("put", "/api/runs/{run}/place"),
    ("delete", "/api/runs/{run}"),
    ("get", "/api/runs/{run}/commands"),
    ("get", "/api/runs/{run}/report"),
    ("post", "/api/runs/{run}/commands"),
    ("get", "/api/commands/{command}"),
    ("get", "/api/alerts"),
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A server with one live loader, for requests that nobody thought of."""
    folder = tmp_path_factory.mktemp("described")
    limits = Limits(commands=100_000, login_failures=100_000, open_commands=100_000)
    settings = Settings(data=folder, timing=BRISK, limits=limits)
    with serving(settings, folder) as server, server.loader("demo") as loader:
        loader.snapshot()
        loader.acknowledged(loader.events(EpochEvent(time.time(), "started", 0)))
        yield server


@pytest.fixture(scope="module")
def schema(described: Address) -> Any:
    return schemathesis.openapi.from_url(f"{described.url}/api/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_makes_the_server_fail_or_break_its_own_description(
    schema: Any, method: str, path: str, mode: GenerationMode
) -> None:
    """Requests that fit the description and requests that do not, made up by schemathesis."""

    @hypothesis_settings(
        max_examples=6, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if case.path_parameters and "loader" in case.path_parameters and mode is GenerationMode.POSITIVE:
            case.path_parameters["loader"] = "demo:0:train"  # a made-up id would only ever find nothing
        case.call_and_validate(headers=bearer(), checks=CHECKS, timeout=PATIENCE)

    try:
        send()
    except Unsatisfiable:
        pytest.skip("nothing about this route can be wrong")


def test_every_route_is_described_with_examples_and_errors(server: Running) -> None:
    described = server.get("/api/openapi.json")
    assert described["openapi"].startswith("3.1")
    assert {(method, path) for path, methods in described["paths"].items() for method in methods} == set(OPERATIONS)
    schemas = described["components"]["schemas"]
    assert {"LoaderDetail", "History", "CommandRecord", "StoredEvent", "ProblemDetails"} <= set(schemas)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            answers = operation["responses"]
            problems = [status for status in answers if status >= "400"]
            assert problems, (method, path)
            for status in problems:
                assert list(answers[status]["content"]) == [MEDIA_TYPE], (method, path, status)
            if path.startswith("/api") and path != "/api/session":
                assert operation["security"], (method, path)
            if method == "post" and not path.endswith("/links"):
                (media,) = operation["requestBody"]["content"].values()
                assert media["example"]
    assert not dangling(described), "references to schemas that are not there"


def dangling(described: Any) -> set[str]:
    """References in the description that lead nowhere."""

    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    return set(references(described)) - known


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/loaders/no:0:such", 404),
        ("GET", "/api/commands/nothing", 404),
        ("GET", "/api/nowhere", 404),
        ("GET", "/assets/../../etc/passwd", 404),
        ("GET", "/assets/%2e%2e/%2e%2e/app.py", 404),
        ("PUT", "/api/loaders", 405),
        ("GET", "/api/loaders?presence=asleep", 422),
        ("GET", "/api/loaders/api:0:train/history?points=0", 422),
        ("GET", "/api/loaders/api:0:train/history?points=999999999", 422),
        ("GET", "/api/loaders/api:0:train/history?from=nan", 422),
        ("GET", "/api/loaders/api:0:train/history?from=inf", 422),
        ("GET", "/api/loaders/api:0:train/history?from=-1", 422),
        ("GET", "/api/loaders/api:0:train/history?from=200&to=100", 422),
        ("GET", "/api/loaders/api:0:train/events?after=-1", 422),
        ("GET", "/api/loaders/api:0:train/events?after=99999999999999999999999", 422),
        ("GET", "/api/loaders/api:0:train/events?kind=dance", 422),
    ],
)
def test_errors_are_problem_details(server: Running, method: str, path: str, status: int) -> None:
    with server.loader("api"), server.http() as client:
        answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == MEDIA_TYPE
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"] and problem["type"].startswith("urn:penstock:problem:")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"action":"pause"}', "text/plain", 415),
        (b'{"action":"pause"}', "application/x-www-form-urlencoded", 415),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"action":"pause","resume_after":NaN}', "application/json", 400),
        (b"[" * 50_000, "application/json", 422),
        (b'{"action":' + b"[" * 50_000, "application/json", 400),
        (b'{"action":"pause","x":' + b"[" * 50_000, "application/json", 422),
        (b" " * 70_000, "application/json", 413),
    ],
)
def test_bodies_that_are_wrong_are_refused(server: Running, content: bytes, kind: str, status: int) -> None:
    with server.loader("bodies") as loader, server.http() as client:
        answer = client.post(f"/api/loaders/{loader.id}/commands", content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE


def test_a_body_of_unknown_length_is_limited_too(server: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    with server.loader("endless") as loader, server.http() as client:
        answer = client.post(
            f"/api/loaders/{loader.id}/commands",
            content=endless(),
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 413


def test_events_can_be_paged_filtered_and_exported(server: Running) -> None:
    with server.loader("events") as loader, server.http() as client:
        for number in range(10):
            loader.events(EpochEvent(time.time(), "started", number), Stall(time.time(), 5, 1, 0, number))
        loader.acknowledged(9)
        path = f"/api/loaders/{loader.id}/events"
        newest = server.get(path, limit=5, kind="epoch")
        assert [stored["event"]["epoch"] for stored in newest] == [5, 6, 7, 8, 9]
        oldest = server.get(path, limit=5, kind="epoch", after=0)
        assert [stored["event"]["epoch"] for stored in oldest] == [0, 1, 2, 3, 4]
        rest = server.get(path, kind="epoch", after=oldest[-1]["id"])
        assert [stored["event"]["epoch"] for stored in rest] == [5, 6, 7, 8, 9]
        assert len(server.get(path)) == 20
        answer = client.get(path, params={"format": "csv"})
        table = list(csv.DictReader(io.StringIO(answer.text)))
        assert len(table) == 20 and {line["kind"] for line in table} == {"epoch", "stall"}
        assert "attachment" in client.get(path, params={"format": "json"}).headers["content-disposition"]


def test_loaders_can_be_filtered(server: Running) -> None:
    with server.loader("filtered", rank=3) as loader:
        rows = server.get("/api/loaders", run="filtered")
        assert [row["id"] for row in rows] == [loader.id]
        assert server.get("/api/loaders", run="filtered", presence="lost") == []


def test_health_needs_no_token_and_says_little(server: Running) -> None:
    with server.http(None) as client:
        assert client.get("/healthz").json() == {"status": "ok", "warning": ""}
        assert client.get("/readyz").json() == {"status": "ok", "warning": ""}


def test_without_a_build_the_first_page_says_how_to_make_one(server: Running) -> None:
    with server.http(None) as client:
        page = client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")


def test_pages_are_served_from_the_package(tmp_path: Path) -> None:
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<p>built</p>")
    (static / "assets" / "index-abc123.js").write_text("export {}" * 1000)
    (static / "favicon.svg").write_text("<svg/>")
    (tmp_path / "secret.txt").write_text("secret")
    app = FastAPI()
    problems.install(app)
    app.include_router(make_router("", static))

    async def fetch(path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get(path, headers=headers)

    assert asyncio.run(fetch("/")).text == "<p>built</p>"
    script = asyncio.run(fetch("/assets/index-abc123.js"))
    assert "immutable" in script.headers["cache-control"]
    assert "javascript" in script.headers["content-type"]
    assert script.headers["content-encoding"] == "gzip" and int(script.headers["content-length"]) < 500
    plain = asyncio.run(fetch("/assets/index-abc123.js", **{"accept-encoding": "identity"}))
    assert "content-encoding" not in plain.headers and plain.text == script.text == "export {}" * 1000
    assert asyncio.run(fetch("/favicon.svg")).status_code == 200
    for path in ("/secret.txt", "/..%2fsecret.txt", "/assets/..%2f..%2fsecret.txt"):
        assert asyncio.run(fetch(path)).status_code == 404


def test_a_parameter_given_twice_is_refused_by_name(server: Running) -> None:
    with server.http() as client:
        answer = client.get("/api/loaders?run=a&run=b")
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"field": "run", "reason": "is given more than once"}]
