"""Samplers ask for the interpreter lock soon, less soon where C code keeps it, and leave no setting behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.profiling.pace import HASTE, MOST_IN_VAIN, PATIENCE, Pace, be_punctual

MANY = 10_000
"""More threads than there are."""


@pytest.fixture(autouse=True)
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def chosen(pace: Pace, in_vain: int, times: int) -> float:
    """The interval after samplers were woken in vain so often for each look."""
    for _ in range(times):
        for _ in range(25):
            pace.note(in_vain)
        pace.choose(MANY)
    pace.hurry()
    return sys.getswitchinterval()


def test_where_c_code_keeps_the_lock_it_is_asked_for_less_often(interval: float) -> None:
    pace = Pace()
    pace.begin()
    assert chosen(pace, 0, 1) == pytest.approx(HASTE)
    pace.rest()
    assert sys.getswitchinterval() == interval
    assert HASTE < chosen(pace, MOST_IN_VAIN + 1, 1) < chosen(pace, MOST_IN_VAIN + 1, 1) < PATIENCE
    assert chosen(pace, MOST_IN_VAIN + 1, 20) == pytest.approx(PATIENCE)
    assert chosen(pace, MOST_IN_VAIN - 1, 3) == pytest.approx(PATIENCE), "often enough"
    assert chosen(pace, 0, 20) == pytest.approx(HASTE)
    pace.end()
    assert sys.getswitchinterval() == interval


def test_other_threads_of_the_program_are_not_hurried() -> None:
    pace, done = Pace(), threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(3)]
    for other in others:
        other.start()
    pace.begin()
    pace.hurry()
    assert sys.getswitchinterval() == pytest.approx(PATIENCE)
    done.set()
    for other in others:
        other.join()
    pace.end()


def test_what_the_program_sets_meanwhile_stays() -> None:
    pace = Pace()
    pace.begin()
    pace.hurry()
    sys.setswitchinterval(0.002)
    assert chosen(pace, MOST_IN_VAIN + 1, 3) == pytest.approx(0.002)
    pace.rest()
    pace.end()
    assert sys.getswitchinterval() == pytest.approx(0.002)


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="reads it in /proc")
def test_only_the_thread_that_asks_is_woken_punctually() -> None:
    def slack() -> int:
        return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())

    before, inside = slack(), []

    def run() -> None:
        be_punctual()
        inside.append(slack())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [1]
    assert slack() == before
