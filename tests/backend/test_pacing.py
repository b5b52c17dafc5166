"""What is watched comes quickly and the rest slowly; what happened in between survives."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from penstock.insight.rates import FIELDS
from penstock.protocol import Between, Detail, Frame, Pace, Rates, Refused, Stall, Welcome
from penstock_dashboard.pacing import CALM, LINGER, SLOWER, SLOWEST, UNWATCHED, WATCHED, Pacing
from penstock_dashboard.settings import Settings
from penstock_dashboard.store.samples import Sample, from_rows, pack, single, to_rows, unpack

from tests.backend.harness import BRISK, Running, decode, make_hello, serving, until


def test_a_busy_loop_slows_what_nobody_watches_first() -> None:
    pacing = Pacing()
    assert (pacing.watched, pacing.unwatched) == (WATCHED, UNWATCHED)
    unwatched, watched = [], []
    for _ in range(20):
        pacing.note(0.95)
        unwatched.append(pacing.unwatched)
        watched.append(pacing.watched)
    assert unwatched == sorted(unwatched) and unwatched[-1] == SLOWEST
    assert watched[unwatched.index(SLOWEST) - 1] == WATCHED, "only when that is not enough"
    assert watched[-1] == WATCHED * SLOWER
    for _ in range(20 * CALM):
        pacing.note(0.1)
    assert (pacing.watched, pacing.unwatched) == (WATCHED, UNWATCHED)


def test_a_loop_that_is_neither_busy_nor_idle_is_left_alone() -> None:
    pacing = Pacing()
    pacing.note(0.9)
    slowed = pacing.unwatched
    for _ in range(50):
        pacing.note(0.1)
        pacing.note(0.6)
    assert pacing.unwatched == slowed


def test_a_page_that_is_loaded_anew_finds_its_loader_at_full_pace() -> None:
    pacing = Pacing()
    assert pacing.interval(LINGER / 2) == WATCHED
    assert pacing.interval(LINGER * 2) == UNWATCHED


def test_whoever_looks_is_told_five_times_a_second(server: Running) -> None:
    with server.loader("paced") as loader:
        assert loader.welcome.interval_us == UNWATCHED * 1e6
        with server.viewer() as viewer:
            viewer.subscribe(overview=True)
            viewer.subscribe(loader.id)
            assert loader.expect(Pace).interval_us == WATCHED * 1e6
            assert viewer.expect(Detail).detail.interval_us == WATCHED * 1e6
        with server.loader("paced", incarnation="second", started=2.0) as again:
            assert again.welcome.interval_us == WATCHED * 1e6, "somebody looked a moment ago"


def test_after_the_last_viewer_left_it_is_told_to_slow_down(server: Running) -> None:
    with server.loader("left") as loader:
        with server.viewer() as viewer:
            viewer.subscribe(loader.id)
            assert loader.expect(Pace).interval_us == WATCHED * 1e6
        entry = server.backend.registry.get(loader.id)
        assert entry is not None
        until(lambda: not server.backend.hub.is_watched(loader.id))
        entry.watched -= LINGER  # as if that had passed
        assert loader.expect(Pace).interval_us == UNWATCHED * 1e6


def test_an_older_loader_is_told_nothing_and_is_not_stale(server: Running) -> None:
    with server.websocket("/ws/publish") as socket, server.viewer() as viewer:
        socket.send(msgspec.msgpack.encode(msgspec.structs.replace(make_hello("older"), protocol=(2, 2))))
        welcome = decode(socket.recv())
        assert isinstance(welcome, Welcome) and welcome.interval_us == 0
        viewer.subscribe("older:0:train")
        assert viewer.expect(Detail).detail.interval_us == 200_000
        entry = server.backend.registry.get("older:0:train")
        assert entry is not None and entry.pace == 0.0


def folded(mean: float, low: float, high: float) -> bytes:
    return pack(Rates(batches=mean), Between(5, Rates(batches=low), Rates(batches=high)))


def test_lows_and_highs_outlive_the_database() -> None:
    bucket = single(Sample(10.0, folded(4.0, 1.0, 90.0)))
    assert (bucket.count, bucket.mean[0], bucket.low[0], bucket.high[0]) == (5, 4.0, 1.0, 90.0)
    assert from_rows(to_rows([bucket])) == [bucket]
    assert unpack(folded(4.0, 1.0, 90.0)) == unpack(pack(Rates(batches=4.0)))
    lies = single(Sample(10.0, folded(4.0, 50.0, 2.0)))
    assert (lies.low[0], lies.high[0]) == (4.0, 4.0), "what the counters say belongs to it"
    older = folded(4.0, 1.0, 90.0)
    fewer = older[:5] + b"".join(older[5 + n * 4 * len(FIELDS) :][: 4 * 20] for n in range(3))
    assert single(Sample(10.0, fewer)) == bucket, "of a version with fewer rates"


def test_a_spike_is_in_history_and_in_the_frame(server: Running) -> None:
    begin = time.time() - 20
    with server.loader("spike") as loader, server.viewer() as viewer:
        viewer.subscribe(loader.id)
        for second in range(10):
            between = Between(5, Rates(batches=8.0), Rates(batches=700.0 if second == 5 else 12.0))
            last = loader.snapshot(at=begin + second, between=between)
        loader.acknowledged(last.seq)
        frame = viewer.expect(Frame, lambda frame: frame.snapshot.seq == last.seq)
        assert frame.snapshot.between == last.between
        history = server.get(f"/api/loaders/{loader.id}/history", **{"from": begin - 1, "to": begin + 30})
        assert max(history["high"]["batches"]) == 700.0 and max(history["mean"]["batches"]) < 20


def test_nonsense_between_two_snapshots_is_refused(server: Running) -> None:
    with server.loader("nonsense") as loader:
        loader.snapshot(between=Between(2, Rates(batches=float("nan")), Rates()))
        assert "finite" in loader.expect(Refused).reason


def test_a_busy_backend_slows_its_loaders(folder: Path) -> None:
    with serving(Settings(timing=BRISK), folder) as server, server.loader("busy") as loader:
        server.backend.load.share = lambda: 1.0  # type: ignore[method-assign]
        assert loader.expect(Pace).interval_us > UNWATCHED * 1e6
        number = loader.events(Stall(time.time(), 1000, 3, 0, 1))
        loader.acknowledged(number)
