"""Receipts: what a change was predicted to bring, and what it brought."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.receipts import Change, Moment, Receipts, in_words
from penstock.protocol import Prediction, Receipt


class Loader:
    """Makes and takes batches at a rate, looked at five times a second."""

    def __init__(self) -> None:
        self.receipts = Receipts()
        self.at = self.made = self.taken = 0.0

    def run(
        self, seconds: float, rate: float, workers: int, *, flows: bool = True, ahead: float = 0.0
    ) -> list[Receipt]:
        """`ahead`: batches that training takes a second beyond what is made."""
        found = []
        for _ in range(int(seconds * 5)):
            self.at += 0.2
            self.made += 0.2 * rate
            self.taken += 0.2 * (rate + ahead)
            receipt = self.receipts.take(Moment(self.at, int(self.made), int(self.taken), workers, flows))
            found += [receipt] if receipt is not None else []
        return found

    def resize(self, before: int, after: int, predicted: float = 0.0) -> None:
        prediction = Prediction(after, predicted, 0.9 * predicted, 1.1 * predicted, enough=predicted > 0)
        self.receipts.change(Change(before, after, prediction, "somebody", "c1"))


def test_a_resize_that_helps_has_its_prediction_and_its_measurement() -> None:
    loader = Loader()
    loader.run(10, 50, 4)
    loader.resize(4, 8, 98)
    (receipt,) = loader.run(30, 100, 8)
    assert (receipt.before, receipt.after, receipt.brought) == (4, 8, "better")
    assert receipt.measured == pytest.approx(100, rel=0.02)
    assert receipt.measured_before == pytest.approx(50, rel=0.02)
    assert (receipt.predicted, receipt.command, receipt.by) == (98, "c1", "somebody")
    assert receipt.error < 0.05
    assert receipt.batches >= 6 * 8
    assert [point.workers for point in loader.receipts.measured] == [4, 8]
    assert in_words(receipt) == receipt.text
    assert "4 → 8 workers: 50 → 100 batches/s" in receipt.text
    assert "about 98 predicted" in receipt.text


def test_a_second_before_the_change_is_enough_to_compare_with_and_a_moment_is_not() -> None:
    for seconds, brought in ((1.6, "worse"), (0.6, "unknown")):
        loader = Loader()
        loader.run(seconds, 80, 2)
        loader.resize(2, 6, 240)
        (receipt,) = loader.run(60, 10, 6)
        assert receipt.brought == brought
        assert (receipt.measured_before is None) == (brought == "unknown")


def test_workers_that_are_there_before_the_change_is_heard_of() -> None:
    loader = Loader()
    loader.run(10, 80, 2)
    loader.run(0.2, 80, 4)
    loader.run(0.2, 80, 6)
    loader.resize(2, 6, 240)
    (receipt,) = loader.run(60, 10, 6)
    assert receipt.measured_before == pytest.approx(80, rel=0.02)
    assert receipt.brought == "worse"


def test_one_that_made_things_worse_is_said_to_have() -> None:
    loader = Loader()
    loader.run(20, 22, 2)
    loader.resize(2, 8, 30)
    (receipt,) = loader.run(60, 14, 8)
    assert receipt.brought == "worse"
    assert "which is worse" in receipt.text


def test_what_was_finished_before_a_shrink_is_not_taken_for_work() -> None:
    loader = Loader()
    loader.run(10, 100, 8)
    loader.resize(8, 2)
    (receipt,) = loader.run(30, 25, 2, ahead=75)
    assert receipt.measured == pytest.approx(25, rel=0.05)
    assert receipt.predicted is None


def test_pauses_and_ends_of_epochs_do_not_count() -> None:
    loader = Loader()
    loader.run(10, 50, 4)
    loader.resize(4, 8)
    found = []
    for _ in range(10):
        found += loader.run(0.8, 100, 8)
        found += loader.run(5, 0, 8, flows=False)
    assert [receipt.measured for receipt in found] == [pytest.approx(100, rel=0.05)]


def test_of_two_changes_the_second_is_measured_against_what_was_before_both() -> None:
    loader = Loader()
    loader.run(10, 50, 4)
    loader.resize(4, 6)
    loader.run(0.4, 75, 6)
    loader.resize(6, 8)
    (receipt,) = loader.run(30, 100, 8)
    assert (receipt.before, receipt.after) == (4, 8)
    assert receipt.measured_before == pytest.approx(50, rel=0.02)


def test_nothing_is_said_of_what_was_before_if_too_little_was_seen() -> None:
    loader = Loader()
    loader.run(0.6, 50, 4)
    loader.resize(4, 8)
    (receipt,) = loader.run(30, 100, 8)
    assert receipt.measured_before is None
    assert receipt.brought == "unknown"


@given(
    st.lists(
        st.tuples(st.floats(0.05, 3), st.integers(0, 500), st.integers(0, 500), st.integers(0, 9), st.booleans()),
        max_size=60,
    ),
    st.sets(st.integers(0, 59)),
)
def test_whatever_happens_numbers_stay_in_their_bounds(
    steps: list[tuple[float, int, int, int, bool]], changes: set[int]
) -> None:
    receipts, at, made, taken, workers = Receipts(), 0.0, 0, 0, 1
    given_out = 0
    for place, (seconds, more_made, more_taken, now, flows) in enumerate(steps):
        at, made, taken = at + seconds, made + more_made, taken + more_taken
        if place in changes and now != workers:
            receipts.change(Change(workers, now, Prediction(now, 5.0, 4.0, 6.0)))
        workers = now
        receipt = receipts.take(Moment(at, made, taken, workers, flows))
        if receipt is not None:
            given_out += 1
            assert receipt.measured >= 0
            assert receipt.error >= 0
            assert receipt.after == workers
            assert len(receipt.text) <= 256
    assert given_out <= len(changes)
