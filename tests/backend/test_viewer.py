"""A viewer's slots and queue, over many schedules, without a connection."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from penstock.protocol import Gap, Happened, Subscribe, ToViewer
from penstock_dashboard.store import EventRecord
from penstock_dashboard.viewer import EventQueue, LiveEvent, Viewer

LOADERS = ("a:0:x", "b:0:x")


def event(number: int, loader: str) -> LiveEvent:
    body = b'{"kind":"epoch","at":1.0,"what":"started","epoch":%d}' % number
    return LiveEvent(EventRecord(number, 1, loader, 1.0, "epoch", body))


def take(viewer: Viewer, most: int = 1000) -> list[ToViewer]:
    """What a connection would send, up to some number of messages."""
    taken: list[ToViewer] = []
    for text in viewer.messages(lambda _: None, lambda _: None):
        taken.append(msgspec.json.decode(text, type=ToViewer))
        if len(taken) >= most:
            break
    return taken


@given(
    steps=st.lists(st.one_of(st.sampled_from(LOADERS), st.just("take"), st.just("take one")), max_size=200),
    most=st.integers(1, 10),
)
def test_every_event_is_shown_once_or_lies_in_a_gap_that_was_told_before(steps: list[str], most: int) -> None:
    viewer = Viewer(most)
    viewer.subscribe(Subscribe(False, list(LOADERS)), newest={})
    happened: dict[str, list[int]] = {loader: [] for loader in LOADERS}
    known: dict[str, list[int]] = {loader: [] for loader in LOADERS}
    """Loader → events the viewer has seen or was told about, in the order it learned of them."""

    def learn(messages: list[ToViewer]) -> None:
        for message in messages:
            if isinstance(message, Gap):
                between = [n for n in happened[message.loader] if message.after < n <= message.until]
                known[message.loader].extend(between)
            elif isinstance(message, Happened):
                for stored in message.events:
                    known[stored.loader].append(stored.id)

    number = 0
    for step in steps:
        if step == "take":
            learn(take(viewer))
        elif step == "take one":
            learn(take(viewer, 1))
        else:
            number += 1
            happened[step].append(number)
            viewer.event(event(number, step))
    while not viewer.empty:
        learn(take(viewer))
    assert known == happened


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_past_and_the_present_meet_without_seam(before: int, overlap: int, later: int) -> None:
    viewer = Viewer(1000)
    loader = LOADERS[0]
    assert viewer.subscribe(Subscribe(False, [loader], {loader: 0}), newest={}) == [loader]
    past = [event(n, loader) for n in range(1, before + overlap + 1)]
    for n in range(before + 1, before + overlap + later + 1):  # these come while the past is being read
        viewer.event(event(n, loader))
    assert take(viewer) == []
    viewer.past(loader, past, complete=True)
    ids = []
    while not viewer.empty:
        ids += [stored.id for m in take(viewer) if isinstance(m, Happened) for stored in m.events]
    assert ids == list(range(1, before + overlap + later + 1))


@given(st.lists(st.sampled_from(["told", "untold", "read", "found", "taken"]), max_size=60))
def test_what_nobody_told_is_shown_once_and_in_order_when_it_was_read(steps: list[str]) -> None:
    viewer, loader = Viewer(1000), LOADERS[0]
    viewer.subscribe(Subscribe(False, [loader], {loader: 0}), newest={})
    viewer.past(loader, [], complete=True)
    stored: list[LiveEvent] = []
    reading: list[list[LiveEvent]] = []
    shown: list[int] = []

    def take_all() -> None:
        shown.extend(stored.id for m in take(viewer) if isinstance(m, Happened) for stored in m.events)

    def read() -> None:
        after = viewer.reread(loader)
        assert after is not None
        reading.append([each for each in stored if each.id > after])

    for step in steps:
        if step in ("told", "untold"):
            stored.append(event(len(stored) + 1, loader))
            if step == "told":
                # Whatever was not told before it is read before it is shown: see `inherited.py`.
                read()
                viewer.event(stored[-1])
        elif step == "read":
            read()
        elif step == "found" and reading:
            viewer.past(loader, reading.pop(0), complete=True)
        elif step == "taken":
            take_all()
    read()
    while reading:
        viewer.past(loader, reading.pop(0), complete=True)
        take_all()
    assert shown == [each.id for each in stored]


def test_only_the_latest_frame_waits() -> None:
    viewer = Viewer(10)
    viewer.subscribe(Subscribe(False, [LOADERS[0]]), newest={})
    latest = ""
    for number in range(100):
        latest = f"frame {number}"
        viewer.frame(LOADERS[0])
    assert list(viewer.messages(lambda _: latest, lambda _: None)) == ["frame 99"]


@given(sizes=st.lists(st.integers(0, 400), max_size=60), most_bytes=st.integers(500, 5000))
def test_what_waits_is_bounded_in_bytes(sizes: list[int], most_bytes: int) -> None:
    queue = EventQueue(1000, most_bytes)
    for number, size in enumerate(sizes):
        record = EventRecord(number, 1, LOADERS[0], 1.0, "epoch", b"x" * size)
        queue.append(LiveEvent(record))
        kept = [queue[place] for place in range(len(queue))]
        assert kept[-1].id == number, "the newest always fits"
        assert len(kept) == 1 or sum(len(event.encoded) for event in kept) <= most_bytes
