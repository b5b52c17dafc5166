"""Clients who take connections and keep them: without a token, or with the weakest. Counted in seats."""

from __future__ import annotations

import contextlib
import re
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock_dashboard.settings import RESERVED_DESCRIPTORS, Limits
from websockets.exceptions import InvalidStatus

from tests.backend.attacks import MB, frame, hung_up, large_snapshot, push, raw, request, websocket
from tests.backend.harness import Dashboard, dashboard, until

FEW: dict[str, float] = {"strangers": 20, "guests": 20, "publishers": 8, "viewers": 8}
BRIEF: dict[str, float] = {**FEW, "idle": 0.5, "handshake": 0.5, "answer": 1.0, "unread": 1.0}


def served(server: Dashboard) -> bool:
    """Whether somebody with a token gets an answer, on a new connection."""
    with contextlib.suppress(Exception), server.http() as client:
        return client.get("/api/loaders").status_code == 200
    return False


def answered_and_one_byte(server: Dashboard) -> socket.socket:
    client = raw(server, request(server, "/healthz"))
    assert b" 200 " in client.recv(4096)
    client.sendall(b"G")
    return client


def test_a_byte_after_an_answer_keeps_no_connection(folder: Path) -> None:
    with dashboard(folder, "--data", ":memory:", limits=BRIEF) as server:
        clients = [answered_and_one_byte(server) for _ in range(10)]
        until(lambda: all(map(hung_up, clients)), "the server to hang up")


def test_strangers_leave_seats_for_those_who_have_shown_a_token(folder: Path) -> None:
    """Far more than there are seats, and none of them is too late yet: whoever has a token gets in at once."""
    limits = {**FEW, "idle": 3600.0, "handshake": 3600.0}
    with dashboard(folder, "--data", ":memory:", limits=limits) as server, contextlib.ExitStack() as open_:
        early = open_.enter_context(server.loader("early"))
        strangers = []
        for number in range(200):
            with contextlib.suppress(OSError, AssertionError):
                strangers.append(answered_and_one_byte(server) if number % 2 else raw(server))
        assert served(server)
        late = open_.enter_context(server.loader("late"))
        viewer = open_.enter_context(server.viewer())
        viewer.subscribe(late.id)
        for loader in (early, late):
            loader.snapshot()
            loader.acknowledged(0)
        until(lambda: sum(not hung_up(client) for client in strangers) <= FEW["strangers"], "most strangers to go")


def test_requests_of_strangers_wait_for_their_turn_and_those_with_a_token_do_not(folder: Path) -> None:
    """Nobody else's turn comes within this test: who shows a token is served all the same."""
    slow: dict[str, float] = {"stranger_rate": 1e-6, "stranger_burst": 3}
    with dashboard(folder, "--data", ":memory:", limits=slow) as server:
        strangers = [raw(server, request(server, "/api/openapi.json")) for _ in range(6)]
        until(lambda: sum(bool(select.select([client], [], [], 0)[0]) for client in strangers) == 3, "three answers")
        assert served(server)
        with server.loader("known") as loader, server.viewer():
            loader.snapshot()
            loader.acknowledged(0)
        assert sum(bool(select.select([client], [], [], 0)[0]) for client in strangers) == 3


def test_strangers_who_are_hung_up_on_while_they_wait_are_not_written_down(folder: Path) -> None:
    limits: dict[str, float] = {**FEW, "strangers": 5, "stranger_rate": 50.0, "stranger_burst": 1}
    with dashboard(folder, "--data", ":memory:", limits=limits) as server:
        strangers = []
        for _ in range(100):
            with contextlib.suppress(OSError):
                strangers.append(raw(server, request(server, "/healthz")))
        until(lambda: sum(not hung_up(client) for client in strangers) <= 5, "most to be hung up on")
        assert served(server)
        assert server.stop() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_an_answer_that_is_not_read_keeps_no_connection(folder: Path) -> None:
    with dashboard(folder, "--data", ":memory:", limits=BRIEF) as server:
        before = server.memory_now
        clients = [raw(server, buffer=4096) for _ in range(10)]
        for client in clients:
            push(client, request(server, "/api/openapi.json"), 300)
        until(lambda: all(map(hung_up, clients)), "the server to hang up")
        assert served(server)
        assert server.memory - before < 60 * MB


def test_a_websocket_that_pings_and_never_reads_costs_no_memory(folder: Path) -> None:
    with dashboard(folder, "--data", ":memory:", limits=BRIEF) as server:
        client = websocket(server, "/ws/live", "viewer")
        before = server.memory_now
        push(client, frame(9, b"x" * 125) * 500, 1000)
        until(lambda: hung_up(client), "the server to hang up")
        assert server.memory - before < 20 * MB


def test_viewers_who_never_read_lose_their_seats(folder: Path) -> None:
    """They would hold them for ever: a connection that is not read from cannot be closed in an orderly way."""
    with dashboard(folder, "--data", ":memory:", limits=BRIEF) as server, server.loader("large") as loader:
        before = server.memory_now
        clients = [websocket(server, "/ws/live", "viewer") for _ in range(6)]
        wanted = frame(1, b'{"type":"subscribe","overview":true,"loaders":["%s"]}' % loader.id.encode())
        for client in clients:
            client.sendall(wanted)
        until(lambda: server.get("/api/status")["viewers"] == 6)

        def gone() -> bool:
            loader.send(large_snapshot(loader.seq))
            loader.seq += 1
            return bool(server.get("/api/status")["viewers"] == 0)

        until(gone, "the viewers to be gone")
        assert server.memory - before < 100 * MB
        with server.viewer() as viewer:
            viewer.subscribe(loader.id)


def test_a_viewer_that_subscribes_over_and_over_costs_no_memory(folder: Path) -> None:
    """Eight loaders with large snapshots; nothing of what it asks for is ever read."""
    patient: dict[str, float] = {"unread": 3600.0, "publishers": 16}
    with dashboard(folder, "--data", ":memory:", limits=patient) as server, contextlib.ExitStack() as held:
        loaders = [held.enter_context(server.loader("large", rank=rank)) for rank in range(8)]
        for loader in loaders:
            loader.send(large_snapshot(0))
            loader.acknowledged(0)
        before = server.memory_now
        client = websocket(server, "/ws/live", "viewer")
        names = ",".join(f'"{loader.id}"' for loader in loaders)
        push(client, frame(1, b'{"type":"subscribe","loaders":[%s]}' % names.encode()), 384)
        with server.viewer() as other:  # everything before has been dealt with, up to the limit of its messages
            other.subscribe(loaders[0].id)
            for _ in range(3):
                loaders[0].seq += 1
                loaders[0].snapshot()
                loaders[0].acknowledged(loaders[0].seq - 1)
        assert server.memory - before < 60 * MB
        client.close()


def test_one_token_does_not_take_all_seats(folder: Path) -> None:
    with dashboard(folder, "--data", ":memory:", limits=FEW) as server, contextlib.ExitStack() as held:
        with pytest.raises(InvalidStatus) as refused:
            for rank in range(8):
                held.enter_context(server.loader("greedy", rank=rank, token="publisher"))
        assert refused.value.response.status_code == 503
        assert server.get("/readyz")["status"] == "refusing"
        held.enter_context(server.loader("modest"))
        with pytest.raises(InvalidStatus):
            for _ in range(8):
                held.enter_context(server.viewer("viewer"))
        held.enter_context(server.viewer())


def test_limits_follow_the_descriptors_that_there_are(folder: Path) -> None:
    """With 200 descriptors, 400 strangers come: who has a token is served, and the log does not fill."""
    few = 200

    def poor() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))

    with dashboard(folder, "--data", str(folder / "data"), "--log-level", "info", before=poor) as server:
        strangers = []
        for _ in range(400):
            with contextlib.suppress(OSError):
                strangers.append(raw(server, b"GET / HTTP/1.1\r\n"))
        assert served(server)
        with server.loader("poor") as loader, server.viewer():
            loader.snapshot()
            loader.acknowledged(0)
        assert server.stop() == 0
        assert server.process.stderr is not None
        lines = server.process.stderr.read().splitlines()
        assert len(lines) <= 3, lines[:10]


@pytest.mark.parametrize("descriptors", [64, 128, 256, 1024, 4096, 16384])
def test_seats_fit_into_the_descriptors(descriptors: int) -> None:
    seats = Limits().within(descriptors)
    assert seats.connections <= max(16, descriptors - RESERVED_DESCRIPTORS)
    assert min(seats.publishers, seats.viewers, seats.guests, seats.strangers) >= 1
    assert descriptors < 8192 or seats == Limits()


def test_a_refused_websocket_is_one_line_in_the_log(folder: Path) -> None:
    with dashboard(folder, "--data", ":memory:", "--log-level", "info") as server:
        for headers in ({}, {"Origin": "http://evil.example"}):
            with pytest.raises(InvalidStatus):
                server.websocket("/ws/live", None, headers=headers)
        assert server.stop() == 0
        assert server.process.stderr is not None
        lines = server.process.stderr.read().splitlines()
        assert [bool(re.search(r"INFO .*refused a websocket: (401|403) ", line)) for line in lines] == [True, True], (
            lines
        )


def test_a_request_with_two_lengths_gets_one_answer(folder: Path) -> None:
    """What follows it, as one of the two lengths has it, is not taken for another request."""
    with dashboard(folder, "--data", ":memory:") as server:
        lines = "Content-Type: application/json", "Content-Length: 4", "Transfer-Encoding: chunked"
        smuggled = request(server, "/healthz")
        client = raw(server, request(server, "/api/session", *lines, method="POST") + b"0\r\n\r\n" + smuggled)
        said = b""
        with contextlib.suppress(ConnectionError):
            while part := client.recv(65536):
                said += part
        assert said.count(b"HTTP/1.1 ") == 1 and said.startswith(b"HTTP/1.1 400"), said


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """As if a proxy stood in front: what it forwards is believed, within limits."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ("--data", ":memory:", "--port", str(port), "--public-url", f"http://127.0.0.1:{port}")
    with dashboard(tmp_path_factory.mktemp("proxied"), *where) as server:
        yield server


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9:4711, 127.0.0.1", "203.0.113.9"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("<script>alert(1)</script>", "127.0.0.1"),
        ("203.0.113.9, unknown", "127.0.0.1"),
        ("x" * 5000, "127.0.0.1"),
    ],
)
def test_a_forwarded_address_is_one_or_is_ignored(proxied: Dashboard, said: str, believed: str) -> None:
    with proxied.loader("forwarded") as loader, proxied.http(headers={"X-Forwarded-For": said}) as client:
        answer = client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"})
        assert answer.json()["origin"] == believed
