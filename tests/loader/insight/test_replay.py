"""Replay: predictions from what was recorded."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.channels import company, find_channels
from penstock.insight.load import summarize
from penstock.insight.recording import Glance, Made, Recording, Turn
from penstock.insight.replay import predict, predict_range, why_not, worth_asking
from penstock.protocol import Load

from tests.recorded.loads import UNFITTED, recorded_loads


def recorded(
    workers: int,
    batches: int = 400,
    *,
    blocked: float = 0.02,
    processor: float = 0.002,
    own: float = 0.0005,
    tail: float = 0.0,
    channels: float = math.inf,
    ramp: int = 0,
    uneven: float = 0.05,
) -> Recording:
    """Batches of workers that take turns, one in a hundred slower by `tail`; with a limit, blocked time grows with the
    number of workers, of whom only one is there for the first `ramp` batches.
    """
    chance, recording, free = random.Random(7), Recording(), [0.0] * workers
    for number in range(batches):
        here = 1 if number < ramp else workers
        if number == ramp:
            free = [free[0]] * workers
        worker = min(range(here), key=lambda each: free[each])
        slow = tail if number % 100 == 50 else 0.0
        time = blocked * chance.uniform(1 - uneven, 1 + uneven) * max(1.0, here / channels) + slow
        recording.made.append(Made(free[worker], time + processor, processor, 0.0, 1000, worker, 0.01 + slow))
        recording.turns.append(Turn(0.0001, own))
        free[worker] += time + processor
    return recording


def load(recording: Recording, workers: int, **more: object) -> Load:
    given = {"at": 1.0, "workers": workers, "allowed": 64.0, "others": 0.0, "training": 0.0, **more}
    return summarize(recording, **given)  # type: ignore[arg-type]


def test_batches_that_only_wait_scale_until_training_is_the_limit() -> None:
    seen = load(recorded(4), 4)
    for workers in (2, 4, 8):
        assert predict(seen, workers).batches == pytest.approx(workers / 0.022, rel=0.05)
    many = predict(seen, 64)
    assert many.batches == pytest.approx(1 / 0.0006, rel=0.05)
    assert many.waiting < 0.1 < predict(seen, 4).waiting


def test_full_processors_are_not_made_more_by_more_workers() -> None:
    seen = load(recorded(4, blocked=0.0, processor=0.02), 4, allowed=2.0)
    few, more = predict(seen, 2), predict(seen, 16)
    assert more.batches == pytest.approx(few.batches, rel=0.05)
    assert more.batches == pytest.approx(2 / 0.02, rel=0.06)


def test_what_others_take_is_not_to_be_had() -> None:
    alone = predict(load(recorded(4, blocked=0.0, processor=0.02), 4, allowed=4.0), 4).batches
    beside = predict(load(recorded(4, blocked=0.0, processor=0.02), 4, allowed=4.0, others=2.0), 4).batches
    assert beside < 0.8 * alone


def test_a_limit_that_was_seen_when_workers_came_one_by_one_holds_for_more_of_them() -> None:
    recording = recorded(8, channels=4.0, ramp=10)
    made = list(recording.made)
    assert find_channels(made, company(made)) == pytest.approx(4.0, rel=0.25)
    seen = load(recording, 8)
    assert predict(seen, 16).batches == pytest.approx(predict(seen, 8).batches, rel=0.05)
    assert predict(seen, 2).batches == pytest.approx(2 / 0.022, rel=0.2)


@pytest.mark.parametrize("ramp", [0, 10])
def test_without_a_limit_none_is_found(ramp: int) -> None:
    made = list(recorded(8, ramp=ramp).made)
    assert find_channels(made, company(made)) == math.inf


def test_a_smaller_budget_and_ordinary_samples_can_be_asked_for() -> None:
    recording = recorded(4, 1000, tail=0.6)
    seen = load(recording, 4, memory_budget=1 << 20, ordinary=(0.01, 0.1))
    now = predict(seen, 4).batches
    assert predict(seen, 4, memory_budget=4000).batches < 0.9 * now
    assert predict(seen, 4, ordinary_samples=True).batches > 1.15 * now


@given(st.integers(0, 23), st.integers(0, 40))
def test_too_little_is_said_to_be(made: int, turns: int) -> None:
    recording = recorded(2, 40)
    few = Recording()
    few.made.extend(list(recording.made)[:made])
    few.turns.extend(list(recording.turns)[:turns])
    seen = load(few, 2)
    prediction = predict(seen, 4)
    assert not prediction.enough
    assert "not enough seen" in prediction.reason == why_not(seen)
    assert not predict(None, 4).enough


@given(
    st.lists(st.tuples(*[st.floats(0, 5)] * 3, st.integers(0, 1 << 30)), min_size=24, max_size=60),
    st.lists(st.floats(0, 2), min_size=12, max_size=40),
    st.integers(1, 64),
    st.floats(0.1, 128),
    st.floats(0, 16),
)
def test_whatever_was_recorded_the_answer_is_a_range_around_a_number_and_fits_a_message(
    rows: list[tuple[float, float, float, int]], turns: list[float], workers: int, allowed: float, others: float
) -> None:
    recording, now = Recording(), 0.0
    for blocked, processor, queued, nbytes in rows:
        recording.made.append(Made(now, blocked + processor + queued, processor, queued, nbytes))
        now += 0.1
    recording.turns.extend(Turn(0.0001, own) for own in turns)
    seen = load(recording, 2, allowed=allowed, others=others, memory_budget=1 << 29)
    encoded = msgspec.msgpack.encode(seen)
    assert len(encoded) < 4096
    assert msgspec.msgpack.decode(encoded, type=Load) == seen
    prediction = predict(seen, workers)
    assert prediction.enough
    assert 0 <= prediction.low <= prediction.batches <= prediction.high <= 1e6
    assert 0 <= prediction.waiting <= 1
    assert prediction == predict(seen, workers), "the same question has the same answer"


def test_sums_are_kept_by_groups_and_the_slow_few_stay() -> None:
    recording = recorded(4, 1000, tail=1.0)
    seen = load(recording, 4)
    whole = sum(made.blocked for made in recording.made) / len(recording.made)
    assert sum(row[0] for row in seen.rows) / len(seen.rows) / 1e6 == pytest.approx(whole, rel=0.03)
    assert max(row[0] for row in seen.rows) > 900_000


@given(st.integers(0, 2000), st.integers(0, 1024))
def test_numbers_worth_asking_are_from_half_to_four_times_as_many(now: int, most: int) -> None:
    numbers = worth_asking(now, most)
    assert numbers == sorted(set(numbers))
    assert all(1 <= number <= max(most, 1) for number in numbers)


def test_a_range_is_what_its_parts_are() -> None:
    seen = load(recorded(2), 2)
    assert predict_range(seen, [1, 3]) == [predict(seen, 1), predict(seen, 3)]


def test_what_real_trainings_then_did_was_predicted() -> None:
    """The figures of the benchmark, over recordings of its trainings: of what was seen before any resize."""
    errors, inside = [], []
    for recorded_load in recorded_loads().values():
        seen = summarize(recorded_load.before.recording(), **recorded_load.before.more)
        for prediction in predict_range(seen, recorded_load.measured):
            measured = recorded_load.measured[prediction.workers]
            errors.append(abs(prediction.batches / measured - 1))
            inside.append(prediction.low <= measured <= prediction.high)
    errors.sort()
    assert len(errors) >= 32
    assert errors[len(errors) // 2] < 0.05
    assert errors[int(0.95 * (len(errors) - 1))] < 0.15
    assert 0.85 <= sum(inside) / len(inside) <= 0.95, "an interval that is always right says too little"


def test_after_a_resize_what_was_measured_counts() -> None:
    for name, recorded_load in recorded_loads().items():
        seen = summarize(recorded_load.after.recording(), **recorded_load.after.more)
        known = {workers for workers, _, _ in seen.measured}
        assert known, name
        for prediction in predict_range(seen, sorted(known & recorded_load.measured.keys())):
            assert prediction.batches == pytest.approx(recorded_load.measured[prediction.workers], rel=0.12), name
            assert prediction.low <= recorded_load.measured[prediction.workers] <= prediction.high, name


def test_a_lock_that_is_never_free_lets_no_more_through() -> None:
    recording = recorded(4, 800)
    for number in range(100):
        recording.glance(Glance(0.05 * number, 4, True, 6 * number, 6 * number, looked=4, locked=2, asleep=2))
    seen = load(recording, 4)
    assert seen.crowded == 1.0
    assert seen.most == pytest.approx(120, rel=0.05)
    assert predict(seen, 16).batches == pytest.approx(120, rel=0.05)
    assert predict(seen, 16).high < 150


def test_what_may_have_a_limit_that_nobody_has_seen_makes_the_interval_wide() -> None:
    recording = recorded(4, 800)
    for number in range(100):
        recording.glance(Glance(0.05 * number, 4, True, 9 * number, 9 * number, looked=4, other=4))
    unsure = predict(load(recording, 4), 16)
    assert unsure.low < 1.2 * 4 / 0.022 < 0.8 * 16 / 0.022 < unsure.high
    asleep = recorded(4, 800, uneven=0.3)
    for glance in recording.glances:
        asleep.glance(glance._replace(asleep=4, other=0))
    sure = predict(load(asleep, 4), 16)
    assert sure.low > 0.8 * sure.batches


def test_workers_that_may_be_in_step_make_the_interval_wide_and_others_do_not() -> None:
    """Nobody is seen to wait for a lock that is taken by one after the other."""
    for uneven, even in ((0.01, True), (0.3, False)):
        recording = recorded(4, 800, uneven=uneven)
        for number in range(100):
            recording.glance(Glance(0.05 * number, 4, True, 9 * number, 9 * number, looked=4, asleep=4))
        seen = load(recording, 4)
        assert seen.even == even
        more, now, fewer = (predict(seen, workers) for workers in (16, 4, 2))
        assert more.high > 0.9 * 4 * now.batches
        assert (more.low < 1.1 * now.batches) == even
        assert fewer.low > 0.8 * fewer.batches and now.low > 0.8 * now.batches, "they bring what they bring"


def test_a_real_lock_among_workers_in_step_is_within_the_interval() -> None:
    """Eight workers brought less than twice what four did, and sixteen no more than eight."""
    taped = recorded_loads(UNFITTED)["in step"]
    seen = summarize(taped.before.recording(), **taped.before.more)
    assert seen.most == 0 and seen.even
    for prediction in predict_range(seen, taped.measured):
        assert prediction.low <= taped.measured[prediction.workers] <= prediction.high, prediction
