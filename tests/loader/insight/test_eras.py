"""Eras, and what locks let through."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.capacity import busy, capacity
from penstock.insight.eras import eras
from penstock.insight.recording import Glance


def glances(
    workers: int, rate: float, seconds: float, *, at: float = 0.0, made: int = 0, locked: int = 0
) -> list[Glance]:
    return [
        Glance(at + t / 20, workers, True, made + int(rate * t / 20), made + int(rate * t / 20), workers, locked, 1)
        for t in range(int(20 * seconds))
    ]


def test_every_number_of_workers_is_an_era_with_its_rate() -> None:
    first, second = glances(2, 50, 5), glances(4, 100, 5, at=5.0, made=250)
    found = eras(first + second)
    assert [era.workers for era in found] == [2, 4]
    assert [era.batches for era in found] == [pytest.approx(50, rel=0.05), pytest.approx(100, rel=0.05)]
    assert all(era.enough and era.told and era.error < 0.05 for era in found)


def test_pauses_and_the_end_of_an_epoch_do_not_count() -> None:
    before = glances(2, 50, 3)
    drained = [glance._replace(at=glance.at + 3, made=150, taken=150, flows=False) for glance in glances(2, 0, 3)]
    after_a_pause = glances(2, 50, 3, at=60.0, made=150)
    (era,) = eras(before + drained + after_a_pause)
    assert era.batches == pytest.approx(50, rel=0.05)
    assert era.seconds < 6.1


def test_the_first_batches_after_a_change_do_not_count() -> None:
    (era,) = eras(glances(8, 20, 3))
    assert era.made <= 60 - 16


def test_a_lock_that_somebody_always_waits_for_lets_through_what_it_does() -> None:
    most, crowded = capacity(eras(glances(4, 100, 5, locked=2)))
    assert crowded == 1.0
    assert most == pytest.approx(100, rel=0.05)
    assert capacity(eras(glances(4, 100, 5))) == (0.0, 0.0)


@given(st.integers(2, 512), st.floats(0.01, 1.0))
def test_a_lock_is_taken_for_longer_than_somebody_waits_for_it(workers: int, crowded: float) -> None:
    taken = busy(workers, crowded)
    assert min(crowded, 0.999) - 1e-6 <= taken <= 1.0
    assert math.isfinite(taken)
