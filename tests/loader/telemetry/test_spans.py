"""Batch spans: every batch at low rates, a fair and stated share of them at high ones."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from penstock.protocol import Span, Spans
from penstock.telemetry.spans import RATE, RING, SpanRing

from tests.loader.support import DataLoader, Stream
from tests.loader.telemetry.datasets import Unhurried
from tests.loader.telemetry.servers import GoodServer, until

SECOND = 1_000_000_000


def play(ring: SpanRing, rate: int, seconds: float, start: int = 0) -> list[Spans]:
    """Yield batches at a steady rate by a clock of our own, and take spans five times a second."""
    taken = []
    ring.watch(start)
    apart = SECOND // rate
    due = start + SECOND // 5
    for batch in range(int(rate * seconds)):
        now = start + (batch + 1) * apart
        if batch % ring.stride == 0:
            ring.add((7, -1, batch), batch % 3, now - 4000, now - 3000, now - 2000, now - 1000)
            ring.yielded((7, -1, batch), now)
        if now >= due:
            due += SECOND // 5
            spans = ring.take(now, now / 1e9)
            if spans is not None:
                taken.append(spans)
    return taken


def test_at_low_rates_every_batch_has_one() -> None:
    taken = play(SpanRing(), RATE // 2, 3)
    shown = [span.batch for spans in taken for span in spans.spans]
    assert {spans.stride for spans in taken} == {1}
    assert shown == list(range(len(shown)))
    assert len(shown) >= RATE


@pytest.mark.parametrize("rate", [RATE * 3, RATE * 40, RATE * 200])
def test_at_high_rates_the_stride_is_stated_and_kept(rate: int) -> None:
    taken = play(SpanRing(), rate, 3)
    for spans in taken:
        shown = [span.batch for span in spans.spans]
        assert spans.stride & (spans.stride - 1) == 0, "a power of two"
        assert shown == list(range(shown[0], shown[-1] + 1, spans.stride)), "all of them, and no others"
        assert not shown[0] % spans.stride
    settled = taken[2:]
    assert {spans.stride for spans in settled} == {settled[0].stride}, "a steady rate has one stride"
    assert rate / settled[0].stride <= RATE * 1.1
    assert rate / settled[0].stride > RATE * 0.4


def test_the_stride_follows_the_rate_down_again() -> None:
    ring = SpanRing()
    play(ring, RATE * 40, 2)
    assert ring.stride > 16
    slow = play(ring, RATE // 5, 4, start=10 * SECOND)
    assert slow[-1].stride == 1


def test_moments_are_told_relative_to_the_first_start() -> None:
    ring = SpanRing()
    ring.watch(0)
    ring.add((2, -1, 0), 1, 5_000_000, 6_000_000, 7_000_000, 8_000_000)
    ring.add((2, -1, 1), 0, 4_000_000, 4_500_000, 5_000_000, 5_500_000)
    ring.yielded((2, -1, 0), 9_000_000)
    spans = ring.take(SECOND, 100.0)
    assert spans is not None
    assert spans.base == pytest.approx(100.0 - (SECOND - 4_000_000) / 1e9)
    first, second = spans.spans
    assert (first.worker, first.epoch, first.batch) == (1, 2, 0)
    assert (first.start_us, first.fetched_us, first.collated_us, first.sent_us, first.yielded_us) == (
        1000, 2000, 3000, 4000, 5000,
    )  # fmt: skip
    assert (second.start_us, second.yielded_us) == (0, -1), "not yet"
    ring.yielded((2, -1, 1), 9_100_000)
    later = ring.take(SECOND, 100.0)
    assert later is not None and later.spans == []
    (again,) = later.late
    assert (again.worker, again.batch, again.start_us, again.sent_us, again.yielded_us) == (0, 1, 0, 1500, 5100)
    assert ring.take(SECOND, 100.0) is None


def test_what_nobody_takes_is_bounded() -> None:
    ring = SpanRing()
    ring.watch(0)
    for batch in range(3 * RING):
        ring.add((0, -1, batch), 0, 1, 2, 3, 4)
    spans = ring.take(SECOND // 100, 0.0)
    assert spans is not None
    assert [span.batch for span in spans.spans] == list(range(2 * RING, 3 * RING))
    assert ring.lost == 2 * RING
    assert len(ring._unyielded) == RING
    for batch in range(3 * RING):
        ring.yielded((0, -1, batch), 5)
    spans = ring.take(SECOND, 0.0)
    assert spans is not None and len(spans.late) == RING and not ring._unyielded


def test_whoever_looks_seldom_still_gets_all_of_a_stated_share() -> None:
    ring = SpanRing()
    rate, interval, taken = RATE, 20, []
    ring.watch(0)
    for batch in range(rate * interval * 4):
        now = (batch + 1) * SECOND // rate
        if batch % ring.stride == 0:
            ring.add((0, -1, batch), 0, now, now, now, now)
        if now % (interval * SECOND) == 0 and (spans := ring.take(now, 0.0)) is not None:
            taken.append((spans, ring.lost))
    assert ring.lost == taken[0][1] > 0, "the first time, before the rate is known; and it is counted"
    for spans, _ in taken[1:]:
        shown = [span.batch for span in spans.spans]
        assert len(shown) == rate * interval // spans.stride


class UnhurriedStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            time.sleep(0.02)
            yield number


@pytest.mark.parametrize("workers", [0, 2])
def test_a_watched_loader_tells_the_life_of_every_batch(workers: int, server: GoodServer) -> None:
    began = time.time()
    watched = DataLoader(Unhurried(length=60), num_workers=workers, monitor=server.url, publish_interval=0.05)
    assert len(list(watched)) == 60
    watched.close()
    until(lambda: server.only.said_goodbye)
    told = [event for event in server.only.events if isinstance(event, Spans)]
    spans = [(spans.base, span) for spans in told for span in spans.spans]
    assert sorted(span.batch for _, span in spans) == list(range(60))
    assert {span.worker for _, span in spans} <= set(range(max(workers, 1)))
    for base, span in spans:
        moments = [span.start_us, span.fetched_us, span.collated_us, span.sent_us]
        assert moments == sorted(moments)
        assert span.yielded_us == -1 or span.yielded_us >= span.sent_us
        assert workers or span.yielded_us == span.sent_us, "inline, a batch is taken when it is there"
        assert began - 0.01 <= base + span.start_us / 1e6
        assert base + max(moments) / 1e6 <= time.time() + 0.01


def test_batches_that_training_does_not_want_yet_are_told(server: GoodServer) -> None:
    watched = DataLoader(
        Unhurried(length=20), num_workers=1, prefetch_factor=20, monitor=server.url, publish_interval=0.05
    )
    iterator = iter(watched)
    next(iterator)
    told = until(lambda: [e for e in server.only.events if isinstance(e, Spans) and e.spans[-1].batch == 19])
    assert told[-1].spans[-1].yielded_us == -1
    assert len(list(iterator)) == 19
    watched.close()


def test_batches_of_shards_are_told_apart(server: GoodServer) -> None:
    watched = DataLoader(UnhurriedStream(length=30), num_workers=3, monitor=server.url, publish_interval=0.05)
    assert len(list(watched)) == 30
    watched.close()
    until(lambda: server.only.said_goodbye)
    spans = [span for event in server.only.events if isinstance(event, Spans) for span in event.spans]
    assert sorted((span.worker, span.batch) for span in spans) == [(w, b) for w in range(3) for b in range(10)]


@pytest.mark.parametrize("style", [Unhurried, UnhurriedStream])
def test_when_a_batch_is_yielded_is_told_in_the_end(style: Any, server: GoodServer) -> None:
    """Workers are far ahead of training: all but one of the batches are told of before they are yielded."""
    made = DataLoader(style(length=30), num_workers=2, prefetch_factor=15, monitor=server.url, publish_interval=0.02)

    def events() -> list[Spans]:
        return [event for event in server.only.events if isinstance(event, Spans)]

    def told() -> list[Span]:
        return [span for spans in events() for span in (*spans.spans, *spans.late) if span.yielded_us >= 0]

    iterator = iter(made)
    next(iterator)
    until(lambda: sum(len(spans.spans) for spans in events()) == 30, "news of every batch")
    for _ in iterator:
        pass
    until(lambda: len(told()) == 30, "news of when each was yielded")
    made.close()
    until(lambda: server.only.said_goodbye)
    assert len(told()) == 30
    assert len({(span.worker, span.batch) for span in told()}) == 30
    assert sum(len(spans.late) for spans in events()) >= 29
    for span in told():
        assert span.yielded_us >= span.sent_us


def test_three_threads_may_meet_at_a_full_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conductor adds rows of which many are never yielded, training yields, the publisher takes."""
    monkeypatch.setattr("penstock.telemetry.spans.RING", 8)
    ring = SpanRing()
    ring.watch(0)
    end = time.monotonic() + 1.5
    problems: list[BaseException] = []

    def repeat(step: Any) -> None:
        number = 0
        try:
            while time.monotonic() < end:
                step(number)
                number += 1
        except BaseException as error:
            problems.append(error)

    steps = (
        lambda n: ring.add((0, -1, n), 0, 1, 2, 3, 4),
        lambda n: ring.yielded((0, -1, n + n % 3), 5),
        lambda n: ring.take(n, 0.0),
    )
    threads = [threading.Thread(target=repeat, args=(step,)) for step in steps]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert problems == []
