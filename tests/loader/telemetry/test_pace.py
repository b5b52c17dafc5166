"""How often a loader publishes is the backend's to say; nothing is lost by it that somebody would miss."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from penstock.protocol import Errors, Pace, Snapshot, Welcome
from penstock.telemetry.pace import SLOWEST, Extremes, Pacer

from tests.backend.harness import make_snapshot
from tests.loader.telemetry.conftest import Publish
from tests.loader.telemetry.servers import GoodServer, until
from tests.loader.telemetry.sources import CountingSource

LOOK = 0.2


def published(pacer: Pacer, looks: list[Snapshot], begin: float = 100.0) -> list[int]:
    """Which of these looks, one every 0.2 s, are published."""
    return [number for number, look in enumerate(looks) if pacer.due(look, begin + number * LOOK)]


def test_every_look_is_published_until_somebody_says_otherwise() -> None:
    assert published(Pacer(LOOK), [make_snapshot(n) for n in range(5)]) == [0, 1, 2, 3, 4]


@given(st.lists(st.floats(0.9, 1.1), min_size=60, max_size=60), st.sampled_from([1.0, 2.0, 4.0]))
def test_a_pace_is_kept_though_looks_are_not_on_time(late: list[float], pace: float) -> None:
    pacer = Pacer(LOOK)
    pacer.tell(int(pace * 1e6))
    now, times = 100.0, []
    for each in late:
        now += LOOK * each
        if pacer.due(make_snapshot(1), now):
            times.append(now)
    apart = [after - before for before, after in pairwise(times)]
    assert apart and all(abs(each - pace) <= LOOK for each in apart)


@pytest.mark.parametrize(
    "news",
    [
        {"state": "failed"},
        {"target": 7},
        {"pending": 7},
        {"bad": 1},
        {"errors": Errors(1, 1.0, "ValueError")},
        {"workers": 3},
    ],
)
def test_news_do_not_wait(news: dict[str, Any]) -> None:
    pacer = Pacer(LOOK)
    pacer.tell(4_000_000)
    looks = [make_snapshot(1) for _ in range(6)] + [make_snapshot(1, **news) for _ in range(6)]
    assert published(pacer, looks)[:2] == [0, 6], "0.2 s after it happened, though the next one was due in 3 s"


def test_news_all_the_time_do_not_break_the_pace() -> None:
    pacer = Pacer(LOOK)
    pacer.tell(4_000_000)
    looks = [make_snapshot(1, state="running" if n % 2 else "finished") for n in range(100)]
    assert len(published(pacer, looks)) <= 21, "four times as often as asked for, and no more"


def test_no_pace_is_too_slow_to_be_alive() -> None:
    pacer = Pacer(LOOK)
    pacer.tell(2**62)
    assert pacer.interval == SLOWEST
    pacer.tell(0)
    assert not pacer.slow and pacer.interval == LOOK


def test_a_spike_between_two_snapshots_is_in_the_next_one() -> None:
    extremes, batches = Extremes(), [0, 2, 4, 104, 106, 108]
    for number, total in enumerate(batches):
        extremes.add(make_snapshot(number, at=1000 + number * LOOK, batches=total))
    between = extremes.take()
    assert between is not None and between.looks == 5
    assert (round(between.low.batches), round(between.high.batches)) == (10, 500)
    extremes.add(make_snapshot(6, at=1001.2, batches=110))
    assert extremes.take() is None, "one look says no more than its snapshot"


def test_a_loader_publishes_as_often_as_it_is_told(server: GoodServer, publish: Publish) -> None:
    source = CountingSource()
    publish(source, server.url)  # looks every 20 ms
    until(lambda: len(server.only.snapshots) >= 3)
    server.send(Pace(60_000_000))
    seen = until(lambda: settled(source, server))
    looked = source.count
    source.happen()
    until(lambda: source.count > looked + 20)
    assert len(server.only.snapshots) == seen, "looks go on, and are not published"
    assert len(server.only.events) == 1, "what happens is told at once"
    server.send(Pace(0))
    until(lambda: len(server.only.snapshots) > seen + 3)
    first = server.only.snapshots[seen]
    assert first.between is not UNSET and first.between.looks > 10
    assert server.only.snapshots[-1].between is UNSET


def settled(source: CountingSource, server: GoodServer) -> int:
    """How many snapshots came, once looks no longer bring any."""
    seen, looked = len(server.only.snapshots), source.count
    until(lambda: source.count > looked + 10)
    return seen if len(server.only.snapshots) == seen else 0


def test_a_welcome_sets_the_pace_and_an_old_backend_sets_none(server: GoodServer, publish: Publish) -> None:
    old = msgspec.msgpack.decode(msgspec.msgpack.encode({"type": "welcome", "protocol": (2, 2), "loader": "x"}))
    assert msgspec.convert(old, Welcome).interval_us == 0
    server.pace_us = 60_000_000
    source = CountingSource()
    publish(source, server.url)
    until(lambda: server.greeted)
    seen = until(lambda: settled(source, server))
    looked = source.count
    until(lambda: source.count > looked + 20)
    assert len(server.only.snapshots) == seen
