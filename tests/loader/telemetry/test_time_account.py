"""The time account as a plain object, with a clock of our own: every moment has one cause, and they add up."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from penstock.pool.observer import Cause
from penstock.protocol import Times
from penstock.telemetry.times import TimeAccount

KINDS = Times.__struct_fields__


def of(times: Times, cause: Cause) -> int:
    value: int = getattr(times, f"{cause.name.lower()}_us")
    return value


def test_the_causes_are_the_protocol_s() -> None:
    assert tuple(f"{cause.name.lower()}_us" for cause in Cause) == KINDS


def test_a_known_schedule_has_the_known_answer() -> None:
    account = TimeAccount()
    assert account.times(5_000) == Times(), "the first next() starts the clock"
    account.enter(10_000)
    account.wait(10_000, Cause.STARTUP)
    account.change(40_000, Cause.STARVATION)
    account.leave(50_000)
    account.exit(51_000)
    account.enter(70_000)  # 19 µs of compute
    account.wait(71_000, Cause.STARVATION)
    account.change(75_000, Cause.REORDER_STALL)
    account.change(85_000, Cause.PIN_WAIT)
    account.change(88_000, Cause.PAUSED)
    account.leave(98_000)
    account.exit(99_000)
    account.stop(102_000)
    assert account.times(10**9) == Times(
        compute_us=22, starvation_us=17, reorder_stall_us=10, pin_wait_us=3, paused_us=10, startup_us=30
    )


def test_the_moment_under_way_counts() -> None:
    account = TimeAccount()
    account.enter(0)
    assert account.times(7_000) == Times(starvation_us=7)
    account.exit(8_000)
    assert account.times(10_000) == Times(starvation_us=8, compute_us=2)
    account.enter(10_000)
    account.wait(10_000, Cause.STARVATION)
    account.change(30_000, Cause.REORDER_STALL)
    assert account.times(70_000) == Times(compute_us=2, starvation_us=28, reorder_stall_us=40)
    assert account.times(80_000) == Times(compute_us=2, starvation_us=28, reorder_stall_us=50), "a look changes nothing"


def test_what_the_conductor_said_of_an_earlier_wait_is_forgotten() -> None:
    account = TimeAccount()
    account.enter(0)
    account.change(5_000, Cause.PAUSED)
    account.wait(10_000, Cause.STARVATION)
    account.leave(20_000)
    account.exit(20_000)
    account.stop(30_000)
    assert account.times(30_000) == Times(compute_us=10, starvation_us=20)


def test_what_the_conductor_says_too_late_changes_nothing() -> None:
    account = TimeAccount()
    account.enter(0)
    account.wait(0, Cause.STARVATION)
    account.leave(10_000)
    account.change(11_000, Cause.REORDER_STALL)
    account.exit(12_000)
    assert account.times(1_000_000) == Times(starvation_us=12, compute_us=988)


def test_a_wait_that_the_end_of_the_epoch_ends_does_not_start_the_clock_again() -> None:
    account = TimeAccount()
    account.enter(0)
    account.wait(0, Cause.STARVATION)
    account.stop(10_000)
    account.leave(11_000)
    account.exit(12_000)
    assert account.times(10**9) == Times(starvation_us=10)


def test_an_epoch_is_the_difference() -> None:
    account = TimeAccount()
    account.enter(0)
    account.stop(10_000)
    before = account.copy(20_000)
    account.enter(50_000)
    account.wait(50_000, Cause.REORDER_STALL)
    account.leave(90_000)
    account.exit(90_000)
    account.stop(91_000)
    assert account.since(before, 10**9) == Times(compute_us=1, reorder_stall_us=40)


@dataclass
class Step:
    apart: int
    """Microseconds since the step before."""
    causes: list[tuple[int, Cause]]
    """The wait: how long for what; empty: the batch was there."""
    inside: int
    """Microseconds that `next()` took beside."""
    last: bool
    """The epoch ends behind it."""


waits = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(list(Cause)[1:])), max_size=4)
steps = st.lists(st.builds(Step, st.integers(0, 50), waits, st.integers(0, 9), st.booleans()), min_size=1, max_size=30)


@given(steps)
def test_nothing_is_lost_and_nothing_counted_twice(script: list[Step]) -> None:
    account, now, clock_runs = TimeAccount(), 0, False
    expected = dict.fromkeys(Cause, 0)
    for step in script:
        now += step.apart * 1000
        if clock_runs:
            expected[Cause.COMPUTE] += step.apart
        account.enter(now)
        clock_runs = True
        for position, (length, cause) in enumerate(step.causes):
            (account.change if position else account.wait)(now, cause)
            now += length * 1000
            expected[cause] += length
        if step.causes:
            account.leave(now)
        now += step.inside * 1000
        expected[Cause.STARVATION] += step.inside
        account.exit(now)
        assert {cause: of(account.times(now), cause) for cause in Cause} == expected
        if step.last:
            account.stop(now)
            clock_runs = False


def test_whoever_reads_meanwhile_sees_sums_that_only_grow() -> None:
    """The training thread waits and computes as fast as it can, with many changes a wait; another one reads.

    What is told to be a wait for one reason may turn out to be one for another, but only as long as it lasts.
    """
    account = TimeAccount()
    done = threading.Event()

    def train() -> None:
        while not done.is_set():
            account.enter(tick())
            account.wait(tick(), Cause.STARTUP)
            for cause in (Cause.STARVATION, Cause.REORDER_STALL, Cause.PIN_WAIT) * 3:
                account.change(tick(), cause)
            account.leave(tick())
            account.exit(tick())

    now = 0
    steps = 13

    def tick() -> int:
        """A clock that only the training thread moves: how long a thread is kept from running does not matter."""
        nonlocal now
        now += 1
        return now

    thread = threading.Thread(target=train)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        before, end = 0, time.monotonic() + 1.5
        while time.monotonic() < end:
            sums = account._totals(now)
            assert before <= sum(sums) <= now
            assert sums[Cause.STARTUP] * steps <= sum(sums) + 2 * steps, "booked to the first cause"
            before = sum(sums)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
