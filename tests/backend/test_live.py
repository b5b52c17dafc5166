"""What a viewer is promised: nothing missed, nothing twice, and nobody harmed by the slow."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from penstock.protocol import (
    CommandChanged,
    Detail,
    EpochEvent,
    Frame,
    Gap,
    Gone,
    Happened,
    Overview,
    Ping,
    Pong,
    Session,
    StoredEvent,
    Subscribe,
)
from penstock_dashboard.settings import Limits, Settings
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame as WsFrame
from websockets.frames import Opcode

from tests.backend.harness import BRISK, FakeLoader, Running, serving, until
from tests.patience import PATIENCE


def news(loader: FakeLoader, first: int, count: int) -> None:
    """Events that carry their own numbers, so that a viewer's can be counted."""
    for number in range(first, first + count):
        loader.events(EpochEvent(time.time(), "started", number))


def test_the_first_message_says_what_this_viewer_may_do(server: Running) -> None:
    with server.viewer("viewer") as viewer:
        assert isinstance(viewer.session, Session)
        assert viewer.session.scopes == ["view"]
        assert viewer.session.read_only


def test_the_state_comes_first_then_frames(server: Running) -> None:
    with server.loader("order") as loader, server.viewer() as viewer:
        loader.snapshot()
        loader.acknowledged(0)
        viewer.subscribe(loader.id)
        first = viewer.next()
        assert isinstance(first, Detail)
        assert first.detail.snapshot is not None and first.detail.snapshot.seq == 0
        second = viewer.next()
        assert isinstance(second, Frame) and second.snapshot.seq == 0
        loader.snapshot()
        third = viewer.next()
        assert isinstance(third, Frame) and third.snapshot.seq == 1
        assert third.rates.batches > 0


def test_a_loader_that_is_not_known_is_gone(server: Running) -> None:
    with server.viewer() as viewer:
        viewer.subscribe("no:0:such")
        assert viewer.expect(Gone).loader == "no:0:such"


def test_ping_is_answered(server: Running) -> None:
    with server.viewer() as viewer:
        viewer.send(Ping(12.5))
        assert viewer.expect(Pong).at == 12.5


def test_the_overview_is_complete_first_and_then_has_what_changed(server: Running) -> None:
    with server.loader("seen") as loader, server.viewer() as viewer:
        viewer.subscribe(overview=True)
        first = viewer.expect(Overview)
        assert first.complete
        assert loader.id in {row.id for row in first.rows}
        loader.snapshot()
        changed = viewer.expect(Overview)
        assert not changed.complete
        assert [row.id for row in changed.rows] == [loader.id]
        with server.loader("seen-later") as later:
            viewer.expect(Overview, lambda message: later.id in {row.id for row in message.rows})


def test_a_change_of_presence_is_shown(server: Running) -> None:
    with server.viewer() as viewer, server.loader("leaving") as loader:
        viewer.subscribe(loader.id)
        viewer.expect(Detail)
        loader.goodbye()
        viewer.expect(Detail, lambda message: message.detail.row.presence == "finished")


def test_a_viewer_gets_what_happened_while_it_was_away(server: Running) -> None:
    with server.loader("away") as loader:
        with server.viewer() as viewer:
            viewer.subscribe(loader.id)
            viewer.expect(Detail)
            news(loader, 0, 3)
            seen: list[StoredEvent] = []
            while len(seen) < 3:
                seen.extend(viewer.expect(Happened).events)
        news(loader, 3, 4)
        with server.viewer() as viewer:
            viewer.subscribe(loader.id, after={loader.id: seen[-1].id})
            news(loader, 7, 2)
            while len(seen) < 9:
                seen.extend(viewer.expect(Happened).events)
    epochs = [stored.event.epoch for stored in seen if isinstance(stored.event, EpochEvent)]
    assert epochs == list(range(9))


def test_reconnecting_viewers_miss_nothing_and_see_nothing_twice(server: Running) -> None:
    """Two viewers come and go at random while events pour in; each ends up with all of them."""
    total = 400
    with server.loader("continuity") as loader:
        identifier = loader.id
        seen: list[list[int]] = [[], []]
        failures: list[BaseException] = []

        def watch(number: int) -> None:
            dice = random.Random(number)
            last = 0
            try:
                while len(seen[number]) < total:
                    with server.viewer() as viewer:
                        viewer.subscribe(identifier, after={identifier: last})
                        for _ in range(dice.randrange(1, 6)):
                            message = viewer.expect(Happened)
                            for stored in message.events:
                                assert stored.id > last, "out of order, or twice"
                                assert isinstance(stored.event, EpochEvent)
                                last = stored.id
                                seen[number].append(stored.event.epoch)
                            if len(seen[number]) >= total:
                                break
            except BaseException as failure:
                failures.append(failure)

        viewers = [threading.Thread(target=watch, args=(number,), daemon=True) for number in range(2)]
        for viewer in viewers:
            viewer.start()
        for number in range(total):
            news(loader, number, 1)
            if number % 20 == 0:
                time.sleep(0.01)
        for viewer in viewers:
            viewer.join(PATIENCE)
    assert not failures
    assert seen == [list(range(total))] * 2


def test_a_long_absence_is_told_as_a_gap(folder: Path) -> None:
    settings = Settings(timing=BRISK, limits=Limits(viewer_events=50))
    with serving(settings, folder) as server, server.loader() as loader, server.viewer() as viewer:
        news(loader, 0, 120)
        loader.acknowledged(119)
        viewer.subscribe(loader.id, after={loader.id: 1})
        gap = viewer.expect(Gap)
        assert gap.after == 1
        first = viewer.expect(Happened).events[0]
        assert first.id == gap.until + 1
        missing = server.get(f"/api/loaders/{loader.id}/events", after=gap.after, before=first.id)
        assert len(missing) == 120 - 1 - 50


def stalled_viewer(server: Running, *loaders: str) -> socket.socket:
    """Subscribes and then never reads; its buffers are small, so the server feels it soon."""
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    stalled.connect(("127.0.0.1", server.port))
    stalled.sendall(
        f"GET /ws/live HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: Bearer {server.secrets['local']}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    stalled.recv(1024)  # the answer to the handshake
    wanted = msgspec.json.encode(Subscribe(True, list(loaders)))
    stalled.sendall(WsFrame(Opcode.TEXT, wanted).serialize(mask=True))
    return stalled


def test_a_viewer_that_does_not_read_harms_nobody(folder: Path) -> None:
    """Its queue stays bounded, what it misses is counted, and another viewer sees everything."""
    limits = Limits(viewer_events=20)
    with serving(Settings(timing=BRISK, limits=limits), folder) as server, server.loader() as loader:
        stalled = stalled_viewer(server, loader.id)
        until(lambda: any(loader.id in c.viewer.loaders for c in list(server.backend.hub.connections)))
        (slow,) = server.backend.hub.connections
        with server.viewer() as good:
            good.subscribe(loader.id)
            good.expect(Detail)
            reasons = "x" * 16_000  # the kernel's own buffers take a few megabytes
            seen: list[Any] = []
            number = 0
            while slow.viewer.dropped == 0:
                for _ in range(5):
                    loader.events(EpochEvent(time.time(), "ended", number, reason=reasons))
                    number += 1
                while len(seen) < number:
                    seen.extend(good.expect(Happened).events)
                assert number < 5000, "the stalled viewer never overflowed"
            assert [stored.event.epoch for stored in seen] == list(range(number))
            assert len(slow.viewer._events) <= limits.viewer_events
        stalled.close()


def test_three_messages_that_are_not_understood_close_the_connection(server: Running) -> None:
    with server.viewer() as viewer:
        for bad in ("{", '{"type":"subscribe","loaders":7}', '{"type":"ping","at":' + "[" * 100_000):
            viewer.send(bad)
        try:
            while True:
                viewer.next()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None and closed.rcvd.code == 1008


def test_commands_are_pushed_to_those_who_watch_the_loader(server: Running) -> None:
    with server.loader("pushed") as loader, server.viewer("viewer") as viewer, server.http() as client:
        viewer.subscribe(loader.id)
        viewer.expect(Detail)
        client.post(f"/api/loaders/{loader.id}/commands", json={"action": "pause"}).raise_for_status()
        assert viewer.expect(CommandChanged).command.state == "accepted"


def test_a_loader_that_comes_later_is_shown_to_those_who_wait_for_it(server: Running) -> None:
    with server.viewer() as viewer:
        viewer.subscribe("awaited:0:train")
        viewer.expect(Gone)
        with server.loader("awaited") as loader:
            viewer.expect(Detail)
            loader.snapshot()
            assert viewer.expect(Frame).snapshot.seq == 0
