from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import msgspec
import pytest
from penstock.protocol import PROTOCOL, Command, EpochEvent, Identity, Pause, Resize, Snapshot
from penstock.telemetry import publisher as module
from penstock.telemetry.address import Address
from penstock.telemetry.outbox import Outbox
from penstock.telemetry.publisher import Publisher
from websockets.sync.server import ServerConnection

from tests.loader.support import ROOT
from tests.loader.telemetry.conftest import Publish
from tests.loader.telemetry.servers import TOKEN, GoodServer, blocked_signals, until
from tests.loader.telemetry.sources import CountingSource
from tests.patience import PATIENCE


def ended(publisher: Publisher) -> bool:
    thread = publisher._thread
    return thread is None or not thread.is_alive()


@pytest.mark.usefixtures("nothing_left_behind")
def test_it_says_who_it_is_and_publishes_without_holes(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publisher = publish(source, server.url)
    until(lambda: len(server.only.snapshots) >= 5)
    publisher.close()
    heard = server.only
    assert server.tokens == [f"Bearer {TOKEN}"]
    assert heard.hello.protocol == PROTOCOL
    assert heard.hello.identity == publisher.identity
    assert heard.hello.config == source.config()
    assert heard.hello.interval_us == 20_000
    assert heard.hello.started == source.started
    assert set(heard.hello.versions) == {"penstock", "python", "torch"}
    assert heard.said_goodbye and heard.holes == []
    assert [snapshot.batches for snapshot in heard.snapshots] == list(range(1, source.count + 1))
    assert ended(publisher)


def wait_for_more(counter: Callable[[], int]) -> None:
    before = counter()
    until(lambda: counter() > before + 3)


def test_events_come_soon_after_wake_and_in_order(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publisher = publish(source, server.url, interval=60.0)
    until(lambda: server.only.snapshots)
    for _ in range(3):
        source.happen()
        publisher.wake()
        until(lambda: len(server.only.events) == source.happened)
    assert [event.epoch for event in server.only.events if isinstance(event, EpochEvent)] == [0, 1, 2]
    assert len(server.only.snapshots) == 1


def test_many_and_large_events_are_split_into_messages_that_fit(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    source.happen(3000)
    source.happen(200, reason="x" * 16000)
    publish(source, server.url)
    until(lambda: len(server.only.events) == 3200)  # the server closes at messages beyond 1 MiB
    assert [event.epoch for event in server.only.events if isinstance(event, EpochEvent)] == list(range(3200))
    assert server.greeted == 1


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_lost_connection_leaves_no_hole(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publisher = publish(source, server.url)
    for visit in range(4):
        until(lambda: server.sockets)
        server.acknowledging = visit % 2 == 0
        wait_for_more(lambda: server.only.last_seq)
        source.happen(3)
        server.stop()
        wait_for_more(lambda: source.count)  # it goes on observing
        server.start()
    until(lambda: server.greeted == 5)
    publisher.close()
    assert server.only.said_goodbye and server.only.holes == []
    assert len(server.only.events) == 12
    assert {snapshot.dropped for snapshot in server.only.snapshots} == {0}


def test_what_does_not_fit_during_an_outage_is_counted(
    server: GoodServer, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Outbox", functools.partial(Outbox, 10))
    source = CountingSource()
    publisher = publish(source, server.url)
    until(lambda: len(server.only.snapshots) > 3)
    server.stop()
    count = source.count
    until(lambda: source.count > count + 25)
    server.start()
    until(lambda: server.only.snapshots[-1].dropped, "a snapshot from after the outage")
    publisher.close()
    holes = server.only.holes
    assert len(holes) >= 15
    assert server.only.snapshots[-1].dropped == len(holes)


def test_a_server_that_starts_later_gets_everything(publish: Publish) -> None:
    server = GoodServer()
    server.stop()
    source = CountingSource()
    publisher = publish(source, server.url)
    until(lambda: source.count > 10)
    server.start()
    try:
        until(lambda: server.loaders and server.only.last_seq > 10)
        publisher.close()
        assert server.only.holes == [] and server.only.snapshots[0].batches == 1
    finally:
        server.stop()


def test_a_source_that_is_gone_ends_it_with_a_goodbye(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publisher = publish(source, server.url)
    until(lambda: server.only.snapshots)
    source.happen()
    source.gone = True
    until(lambda: ended(publisher))
    assert server.only.said_goodbye and len(server.only.events) == 1


def test_the_next_loader_of_a_name_waits_until_the_one_before_has_said_goodbye(
    server: GoodServer, publish: Publish
) -> None:
    goodbyes: list[bool] = []

    def look(_socket: ServerConnection, message: object) -> None:
        if isinstance(message, Snapshot) and len(server.loaders) == 2:
            goodbyes.append(next(iter(server.loaders.values())).said_goodbye)

    server.on_message = look
    first = CountingSource()
    publish(first, server.url)
    until(lambda: server.only.snapshots)
    first.gone = True
    publish(CountingSource(), server.url)
    until(lambda: len(goodbyes) > 2)
    assert all(goodbyes)


def test_a_source_that_fails_is_told_once_and_harms_nothing(
    server: GoodServer, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    source = CountingSource()
    source.failing = "no snapshot today"
    publisher = publish(source, server.url)
    source.happen(2)
    until(lambda: len(server.only.events) == 2)
    source.failing = ""
    until(lambda: len(server.only.snapshots) > 2)
    publisher.close()
    assert server.only.holes == []
    told = [record for record in caplog.records if record.name == "penstock" and record.levelno >= logging.WARNING]
    assert len(told) == 1 and "no snapshot today" in told[0].getMessage()


def test_close_may_be_called_twice_and_before_start(server: GoodServer, publish: Publish) -> None:
    publisher = publish(CountingSource(), server.url)
    publisher.close()
    publisher.close()
    publisher.wake()
    never = Publisher(CountingSource(), Address(server.url), identity=publisher.identity)
    never.wake()
    never.close()


@pytest.mark.parametrize(
    ("interval", "error"), [(0, ValueError), (61, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_a_bad_interval_is_named(interval: float, error: type[Exception], publish: Publish) -> None:
    with pytest.raises(error, match="publish_interval"):
        publish(CountingSource(), "http://127.0.0.1:1", interval)


def test_signals_are_left_to_the_main_thread(server: GoodServer, publish: Publish) -> None:
    """Else Ctrl-C, given to this thread, would not wake a main thread that waits."""
    publisher = publish(CountingSource(), server.url)
    until(lambda: server.sockets)
    thread = publisher._thread
    assert thread is not None
    blocked = blocked_signals(Path(f"/proc/self/task/{thread.native_id}/status"))
    assert {signal.SIGINT, signal.SIGCHLD, signal.SIGTERM} <= blocked
    assert signal.SIGSEGV not in blocked


# -- commands -----------------------------------------------------------------------------------------------


def states(server: GoodServer, command: str) -> list[str]:
    return [outcome.state for outcome in server.only.outcomes if outcome.command == command]


def test_a_command_is_applied_once_and_answered(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publish(source, server.url)
    until(lambda: server.sockets)
    server.send(Command("c1", Resize(3)))
    until(lambda: states(server, "c1") == ["delivered", "applied"])
    assert source.commands == [Command("c1", Resize(3))]
    server.send(Command("c1", Resize(3)))  # delivered again: the same answer, and nothing is done
    until(lambda: states(server, "c1") == ["delivered", "applied", "applied"])
    assert len(source.commands) == 1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"type": "command", "id": "c1", "action": "explode"}, "explode"),
        ({"type": "command", "id": "c1", "action": "resize", "workers": -4}, ">= 1"),
        ({"type": "command", "id": "c1", "action": "resize", "workers": 10**6}, "<= 1024"),
        ({"type": "command", "id": "c1", "action": "resize"}, "workers"),
        ({"type": "command", "id": "c1", "action": "pause", "resume_after": "soon"}, "float"),
        ({"type": "command", "id": "c1"}, "action"),
    ],
)
def test_a_malformed_command_is_rejected_with_a_reason(
    server: GoodServer, publish: Publish, raw: dict[str, object], reason: str
) -> None:
    source = CountingSource()
    publish(source, server.url)
    until(lambda: server.sockets)
    server.send(msgspec.msgpack.encode(raw))
    until(lambda: server.only.outcomes)
    assert states(server, "c1") == ["rejected"]
    assert reason in server.only.outcomes[0].reason
    assert source.commands == [] and server.greeted == 1


def test_what_is_not_understood_is_ignored(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publish(source, server.url)
    until(lambda: server.sockets)
    for nonsense in (
        b"",
        b"\xc1",
        b"\xff" * 1000,
        b"\x91" * 100_000,
        "text",
        msgspec.msgpack.encode({"type": "dance"}),
        msgspec.msgpack.encode({"type": "command"}),
        msgspec.msgpack.encode({"type": "command", "id": 7}),
        msgspec.msgpack.encode({"type": "ack", "seq": -1}),
        msgspec.msgpack.encode({"type": "ack", "seq": 2**60}),
        msgspec.msgpack.encode({"type": "welcome", "protocol": PROTOCOL, "loader": "x", "last_seq": 2**60}),
        msgspec.msgpack.encode([1, 2, 3]),
    ):
        server.send(nonsense)
    newer = {"type": "command", "id": "c1", "action": "pause", "urgency": {"of": "a newer backend"}}
    server.send(msgspec.msgpack.encode(newer))
    until(lambda: states(server, "c1") == ["delivered", "applied"])
    assert server.greeted == 1 and server.only.holes == []


def test_a_read_only_loader_rejects_commands(server: GoodServer, publish: Publish) -> None:
    source = CountingSource(control=False)
    publish(source, server.url)
    until(lambda: server.sockets)
    server.send(Command("c1", Pause()))
    until(lambda: states(server, "c1") == ["rejected"])
    assert "allow_control=False" in server.only.outcomes[0].reason and source.commands == []


def test_a_command_that_fails_is_rejected_with_the_reason(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publish(source, server.url)
    until(lambda: server.sockets)
    source.failing = "the pool is upside down"
    server.send(Command("c1", Pause()))
    until(lambda: states(server, "c1") == ["rejected"])
    assert server.only.outcomes[0].reason == "RuntimeError: the pool is upside down"


def test_a_flood_of_commands_reaches_loading_only_in_part(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publish(source, server.url, interval=60.0)
    until(lambda: server.sockets)
    for number in range(100):
        server.send(Command(f"c{number}", Pause()))
    until(lambda: {outcome.command for outcome in server.only.outcomes} == {f"c{n}" for n in range(100)})
    assert len(source.commands) == 32


def test_outcomes_survive_a_lost_connection(server: GoodServer, publish: Publish) -> None:
    """The connection breaks before the loader's answer can arrive; the next one carries it."""
    source = CountingSource()
    publish(source, server.url)
    until(lambda: server.sockets)
    server.acknowledging = False
    server.send(Command("c1", Resize(5)))
    until(lambda: source.commands)
    server.only.outcomes.clear()  # as if they had been lost on the way
    server.stop()
    server.only.outcomes.clear()
    server.start()
    until(lambda: states(server, "c1")[-1:] == ["applied"])
    assert len(source.commands) == 1


# -- the ends of processes ----------------------------------------------------------------------------------


SCRIPT = """
import sys, time
from penstock.telemetry.publisher import publish
from tests.loader.telemetry.sources import CountingSource
source = CountingSource()
publish(source, sys.argv[1], 0.02)
while source.count < 3:
    time.sleep(0.01)
source.happen(5)
{ending}
"""


@pytest.mark.parametrize("ending", ["", "raise RuntimeError('training failed')", "sys.exit(3)"])
def test_the_end_of_the_interpreter_sends_what_is_left(server: GoodServer, ending: str) -> None:
    script = [sys.executable, "-c", SCRIPT.format(ending=ending), f"{server.url}#token={TOKEN}"]
    subprocess.run(script, cwd=ROOT, timeout=PATIENCE, capture_output=True, check=False)
    assert server.only.said_goodbye and server.only.holes == []
    assert len(server.only.events) == 5


@pytest.mark.parametrize("where", ["http://127.0.0.1:1", "http://127.0.0.1:{stopped}"])
def test_the_end_of_the_interpreter_does_not_wait_for_a_server_that_is_not_there(where: str) -> None:
    script = [sys.executable, "-c", SCRIPT.format(ending=""), where.format(stopped=9)]
    done = subprocess.run(script, cwd=ROOT, timeout=PATIENCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def _in_the_child(publisher: Publisher, source: CountingSource, pipe: Pipe) -> None:
    count = source.count
    publisher.wake()
    publisher.close()
    publisher.start()
    connection = publisher._connection
    pipe.send((connection is None or connection.fileno() == -1, source.count == count, not module._active))
    pipe.recv()  # stay until the parent has gone through its end
    os._exit(0)


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_forked_child_does_not_publish_and_does_not_hold_the_connection(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publisher = publish(source, server.url)
    until(lambda: server.sockets)
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    child = context.Process(target=_in_the_child, args=(publisher, source, far))
    child.start()
    try:
        assert near.poll(PATIENCE) and near.recv() == (True, True, True)
        reached = server.only.last_seq
        until(lambda: server.only.last_seq > reached + 3)  # the parent's connection is as it was
        assert server.greeted == 1
        publisher.close()
        until(lambda: not server.sockets)  # end-of-file came, though the child lives
        assert child.is_alive()
    finally:
        near.send("end")
        child.join(PATIENCE)
        child.kill()
        child.join()
        child.close()
        near.close()
        far.close()


def test_of_two_that_are_gone_the_second_waits_and_the_first_does_not() -> None:
    """Else neither would say goodbye, if the first has lost its connection meanwhile."""
    sources = [CountingSource(), CountingSource()]
    address = Address("http://127.0.0.1:1", TOKEN)
    first, second = (Publisher(each, address, identity=Identity("run", each.name)) for each in sources)
    for source in sources:
        source.gone = source.was_interrupted = True
    module._active.update((first, second))
    try:
        assert second._has_predecessor() and not first._has_predecessor()
        first._gone_at = second._gone_at = 100.0
        assert second._lingers(100.5) and not second._lingers(100.0 + module.LINGER)
        assert not first._lingers(100.5), "the process that has made another since goes on"
    finally:
        module._active.difference_update((first, second))
