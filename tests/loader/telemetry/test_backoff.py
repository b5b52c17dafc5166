from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.telemetry import backoff
from penstock.telemetry.backoff import STABLE, Backoff


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST", 0.25)
    monkeypatch.setattr(backoff, "MOST", 30.0)


def test_it_doubles_up_to_half_a_minute() -> None:
    delays = Backoff(lambda: 1.0)
    assert [delays.failed(0.0) for _ in range(10)] == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


@given(st.floats(0, 1), st.integers(1, 3000))
def test_jitter_never_leaves_the_bounds(chance: float, failures: int) -> None:
    delays = Backoff(lambda: chance)
    for _ in range(failures):
        assert 0.125 <= delays.failed(0.0) <= 30.0


def test_only_a_connection_that_held_makes_failures_forgotten() -> None:
    delays = Backoff(lambda: 1.0)
    for _ in range(5):
        delays.failed(0.0)
    delays.succeeded(100.0)
    assert delays.failed(100.0 + STABLE / 2) == 8  # welcomed and dropped again and again is no success
    delays.succeeded(200.0)
    assert delays.failed(200.0 + STABLE) == 0.25
    assert delays.failed(300.0) == 0.5


def test_training_s_random_numbers_stay_as_they_are() -> None:
    import random

    random.seed(1)
    expected = random.random()
    random.seed(1)
    Backoff().failed(0.0)
    assert random.random() == expected
