"""The server misbehaves in every way. Each time the publisher neither raises nor blocks, and once there is a server
that behaves, it gets everything.
"""

from __future__ import annotations

import itertools
import logging
import socket

import pytest
from penstock.telemetry import attention
from penstock.telemetry import publisher as module

from tests.loader.telemetry.conftest import Bad, Publish
from tests.loader.telemetry.misbehaviours import (
    BEHAVIOURS,
    Behaviour,
    dies_after_the_welcome,
    falls_silent,
    floods,
    never_answers,
    never_welcomes,
    sends_10_mb,
    sends_10_mb_in_pieces,
)
from tests.loader.telemetry.servers import GoodServer, Wire, until
from tests.loader.telemetry.sources import CountingSource


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE", 0.3)
    monkeypatch.setattr(module, "SILENCE", 0.3)


@pytest.mark.parametrize("behave", BEHAVIOURS)
def test_a_good_server_in_the_place_of_a_bad_one_gets_everything(
    behave: Behaviour, bad: Bad, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    raw = bad(behave)
    source = CountingSource()
    publisher = publish(source, raw.url)
    until(lambda: raw.met >= 3, "three attempts")
    raw.stop()
    server = GoodServer(raw.port)
    try:
        until(lambda: server.loaders and len(server.only.snapshots) > 3)
        publisher.close()
    finally:
        server.stop()
    assert server.only.said_goodbye
    assert server.only.holes == []
    assert server.only.snapshots[-1].dropped == 0
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == len(set(told)) <= 4, told


@pytest.mark.parametrize("behave", [never_answers, never_welcomes, falls_silent, floods, dies_after_the_welcome])
def test_close_returns_whatever_the_server_does(behave: Behaviour, bad: Bad, publish: Publish) -> None:
    raw = bad(behave)
    publisher = publish(CountingSource(), raw.url)
    until(lambda: raw.met)
    publisher.close(flush=0.2)
    thread = publisher._thread
    assert thread is not None
    until(lambda: not thread.is_alive())


def test_a_flood_does_not_keep_the_thread_busy(bad: Bad, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in turns of its loop, with an account that is soon empty and fills so slowly that it stays so."""
    monkeypatch.setattr(attention, "BURST", 0.002)
    monkeypatch.setattr(attention, "SHARE", 0.0001)
    for patience in ("HANDSHAKE", "SILENCE"):  # a slow machine must not take it for the end that it hears little
        monkeypatch.setattr(module, patience, 1000.0)
    turns = itertools.count()
    turn = module.Publisher._turn
    monkeypatch.setattr(module.Publisher, "_turn", lambda self, now: (next(turns), turn(self, now))[1])
    raw = bad(floods)
    source = CountingSource()
    publish(source, raw.url)
    until(lambda: source.count > 20)
    assert next(turns) < 10 * source.count
    assert raw.met == 1


def test_a_server_that_stops_reading_costs_no_more_memory_than_stated(bad: Bad, publish: Publish) -> None:
    raw = bad(falls_silent)
    source = CountingSource()
    publisher = publish(source, raw.url)
    until(lambda: raw.met)
    for _ in range(40):
        source.happen(100, reason="x" * 10_000)  # a megabyte
        observed(source)
        connection = publisher._connection
        assert publisher._outbox.size <= 4 << 20
        assert connection is None or len(connection._outgoing) <= (1 << 20) + (1 << 17)
    assert publisher._outbox.dropped > 0


@pytest.mark.parametrize("behave", [sends_10_mb, sends_10_mb_in_pieces])
def test_a_message_that_is_too_large_is_not_taken_in(
    behave: Behaviour, bad: Bad, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    raw = bad(behave)
    publish(CountingSource(), raw.url)
    until(lambda: raw.met >= 2 and "does not keep to the protocol" in caplog.text)
    assert "not understood" not in caplog.text


def observed(source: CountingSource) -> None:
    """Wait until the publisher has looked at the source again."""
    taken = source.count
    until(lambda: source.count > taken)


def test_an_unreachable_server_is_told_once(publish: Publish, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        source = CountingSource()
        publish(source, f"http://127.0.0.1:{held.getsockname()[1]}")
        until(lambda: source.count > 20)
    told = [record.getMessage() for record in caplog.records if record.name == "penstock"]
    assert len(told) == 1 and "refused" in told[0] and "Training goes on" in told[0]


@pytest.mark.parametrize("towards_server", [True, False])
def test_a_wire_that_breaks_at_any_byte_leaves_no_hole(
    towards_server: bool, server: GoodServer, publish: Publish
) -> None:
    """Every new connection gets a little further than the one before: through the request, its answer, the hello, the
    welcome, and into the messages.
    """
    far = 1 << 40
    lengths = itertools.count(1, 13 if towards_server else 5)
    tried: list[int] = []

    def limits() -> tuple[int, int]:
        length = next(lengths)
        tried.append(length)
        if length > (1000 if towards_server else 400):
            return far, far
        return (length, far) if towards_server else (far, length)

    wire = Wire(server.port, limits)
    try:
        source = CountingSource()
        publisher = publish(source, wire.url)
        until(lambda: tried and tried[-1] > (1000 if towards_server else 400))
        reached = source.count
        until(lambda: server.loaders and len(server.only.snapshots) > reached)
        publisher.close()
        assert server.greeted > 5
        assert server.only.said_goodbye and server.only.holes == []
        assert [snapshot.batches for snapshot in server.only.snapshots] == list(range(1, source.count + 1))
    finally:
        wire.stop()
