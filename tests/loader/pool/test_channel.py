"""Channels: whole messages in order, descriptors with them, and an end that the other side sees."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.pool.crews import channel
from penstock.pool.crews.channel import Channel, ChannelClosedError, pair

from tests.loader.support import open_descriptors


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """(one that does not block, as the conductor's, one that does, as a worker's)"""
    ours, theirs = pair()
    made = Channel(ours, blocking=False), Channel(theirs, blocking=True)
    yield made
    for end in made:
        with suppress(OSError):
            end.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(), st.binary(max_size=100), st.sampled_from([bytes(70_000), bytes(600_000)])), max_size=8
    )
)
def test_messages_arrive_whole_and_in_order(messages: list[Any]) -> None:
    ours, theirs = pair()
    left, right = Channel(ours, blocking=False), Channel(theirs, blocking=True)
    for message in messages:
        left.send(message)
    received: list[Any] = []
    while len(received) < len(messages):
        left.flush()
        received += right.receive_ready()
    assert received == messages
    assert not left.outgoing
    left.close()
    right.close()


def test_a_blocking_end_waits_for_room(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    big = os.urandom(3_000_000)
    writer = threading.Thread(target=right.send, args=(big,))
    writer.start()
    received: list[Any] = []
    while not received:
        received = left.receive_ready()
    writer.join()
    assert received == [big]


def test_descriptors_come_with_their_message(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    before = open_descriptors()
    for number in range(30):
        read, write = os.pipe()
        os.write(write, b"%d" % number)
        left.send(number, [read])
        os.close(read)
        os.close(write)
    for number in range(30):
        assert right.receive() == number
        descriptor = right.descriptors.popleft()
        assert not os.get_inheritable(descriptor)
        assert os.read(descriptor, 10) == b"%d" % number
        os.close(descriptor)
    assert open_descriptors() == before


def test_descriptors_that_nobody_took_are_closed(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    read, write = os.pipe()
    left.send("take these", [read, write])
    os.close(read)
    right.receive()
    right.close()
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)


def test_the_end_is_seen_after_what_was_sent(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send("last words")
    left.close()
    assert right.receive_ready() == ["last words"]
    with pytest.raises(ChannelClosedError):
        right.receive_ready()
    with pytest.raises(ChannelClosedError):
        right.receive()
    with pytest.raises(ChannelClosedError):
        right.send("anybody there?")


def test_a_full_socket_does_not_mix_up_messages_with_descriptors(ends: tuple[Channel, Channel]) -> None:
    """As when very many workers are asked of a zygote that is still importing."""
    left, right = ends
    read, write = os.pipe()
    for number in range(2000):
        left.send(number, [read] if number % 3 == 0 else None)
    os.close(read)
    os.close(write)
    received: list[Any] = []
    while len(received) < 2000:
        left.flush()
        received += right.receive_ready()
    assert received == list(range(2000))
    assert len(right.descriptors) == 667


def test_a_forked_process_does_not_keep_ends_open(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if not child:
        os.close(hold_write)
        os.read(hold_read, 1)  # live until the test says so
        os._exit(0)
    try:
        left.close()
        with pytest.raises(ChannelClosedError):
            right.receive()
    finally:
        os.close(hold_write)
        os.close(hold_read)
        os.waitpid(child, 0)


@pytest.mark.parametrize("sender", [0, 1])
def test_where_descriptors_may_get_lost_they_are_kept_until_they_have_arrived(
    ends: tuple[Channel, Channel], sender: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, which also has no flag by which they arrive closed to programs that are started."""
    monkeypatch.setattr(channel, "_CLOSE_ON_EXEC", 0)
    monkeypatch.setattr(channel, "_ACKNOWLEDGE", True)
    before = open_descriptors()
    read, write = os.pipe()
    sent, received = ends[sender], ends[1 - sender]
    sent.send("take these", [read, write])
    os.close(read)
    os.close(write)
    assert open_descriptors() == before + 2
    assert received.receive_ready() == ["take these"]
    assert not any(os.get_inheritable(each) for each in received.descriptors)
    assert open_descriptors() == before + 4
    received.send("thank you")
    assert sent.receive_ready() == ["thank you"]
    assert open_descriptors() == before + 2
    received.close()
    assert open_descriptors() == before - 1


def test_descriptors_above_1023_can_be_waited_for(ends: tuple[Channel, Channel]) -> None:
    """As in a training that has very many files open; select.select refuses them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1200), hard))
    high = fcntl.fcntl(ends[1].fileno(), fcntl.F_DUPFD_CLOEXEC, 1100)
    assert not channel.is_readable(high)
    ends[0].send("here")
    assert channel.is_readable(high, None)
    os.close(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
