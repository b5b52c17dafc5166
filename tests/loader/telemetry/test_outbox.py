from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.telemetry.outbox import OVERHEAD, Answers, Outbox

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 300)),
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("arrive"), st.integers(1, 5)),
        st.tuples(st.just("acknowledge"), st.just(0)),
        st.tuples(st.just("break"), st.just(0)),
    ),
    max_size=200,
)


class Peer:
    """The other side, and the wire to it, which loses what is under way when it breaks."""

    def __init__(self) -> None:
        self.wire: list[int] = []
        self.arrived: set[int] = set()
        self.last = -1

    def take(self, number: int) -> None:
        for _ in range(min(number, len(self.wire))):
            seq = self.wire.pop(0)
            if seq > self.last:
                self.arrived.add(seq)
                self.last = seq


def message(seq: int, size: int) -> bytes:
    return seq.to_bytes(4, "big") + bytes(size)


@given(STEPS, st.integers(1, 12), st.integers(OVERHEAD + 310, 3000))
def test_whatever_happens_every_message_arrives_or_is_counted(
    steps: list[tuple[str, int]], most: int, most_bytes: int
) -> None:
    outbox, peer = Outbox(most, most_bytes), Peer()
    for what, number in steps:
        if what == "add":
            outbox.add(message(outbox.next_seq, number))
        elif what == "send":
            for _ in range(number):
                if (data := outbox.take()) is not None:
                    peer.wire.append(int.from_bytes(data[:4], "big"))
        elif what == "arrive":
            peer.take(number)
        elif what == "acknowledge":
            outbox.acknowledge(peer.last)
        else:
            peer.wire.clear()
            outbox.resume(peer.last)
        assert len(outbox) <= most
        assert outbox.size <= most_bytes
        assert outbox.dropped <= outbox.next_seq - len(peer.arrived)
    peer.wire.clear()
    outbox.resume(peer.last)
    while (data := outbox.take()) is not None:
        peer.wire.append(int.from_bytes(data[:4], "big"))
    peer.take(len(peer.wire))
    assert len(peer.arrived) + outbox.dropped == outbox.next_seq


@given(st.integers(-5, 30), st.integers(-5, 30))
def test_a_confused_backend_cannot_make_it_forget_what_was_never_sent(acknowledged: int, last: int) -> None:
    outbox = Outbox()
    for seq in range(10):
        outbox.add(message(seq, 0))
    for _ in range(4):
        outbox.take()
    outbox.acknowledge(acknowledged)
    outbox.resume(last)
    rest = []
    while (data := outbox.take()) is not None:
        rest.append(int.from_bytes(data[:4], "big"))
    assert rest[-6:] == [4, 5, 6, 7, 8, 9]


def test_a_message_larger_than_the_outbox_is_still_kept_as_the_only_one() -> None:
    outbox = Outbox(10, 100)
    outbox.add(b"small")
    outbox.add(bytes(500))
    assert outbox.take() == bytes(500)
    assert outbox.dropped == 1


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["answer", "sequenced", "send answer", "break"]),
            st.tuples(st.just("arrive"), st.integers(1, 4)),
        ),
        max_size=120,
    )
)
def test_answers_arrive_at_least_once_over_all_connections(steps: list[str | tuple[str, int]]) -> None:
    """The wire carries answers and sequenced messages in order, and loses what is under way when it breaks."""
    answers, wire, arrived = Answers(), list[tuple[str, int]](), set[int]()
    given_out, last_sent, last_arrived = 0, -1, -1
    for step in steps:
        if step == "answer":
            answers.add(message(given_out, 0))
            given_out += 1
        elif step == "sequenced":
            last_sent += 1
            wire.append(("sequenced", last_sent))
        elif step == "send answer":
            if (data := answers.take(last_sent)) is not None:
                wire.append(("answer", int.from_bytes(data, "big")))
        elif step == "break":
            wire.clear()
            last_sent = last_arrived
            answers.resume()
        else:
            for kind, number in wire[: int(step[1])]:
                if kind == "answer":
                    arrived.add(number)
                else:
                    last_arrived = number
                    answers.acknowledge(number)
            del wire[: int(step[1])]
    answers.resume()
    while (data := answers.take(last_sent)) is not None:
        arrived.add(int.from_bytes(data, "big"))
    assert arrived == set(range(given_out))
