"""The tuner in a simulated world: how close it gets to the best fixed number, how fast, and what it never does."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.tuning.reading import Reading
from penstock.tuning.tuner import FIRST_HOLD, Step, Tuner

from .loads import LOADS, Load, constant, varied
from .trial import LOOK, Course, fixed, note, tuned

UNTIL = 300.0
SCHEDULES = int(os.environ.get("PENSTOCK_SCHEDULES", "40"))
"""Random schedules of people's wishes, pauses and alarms that are tried. 1,000 of them take two minutes."""
NEAR = {
    "sleep-bound": (38, 45),
    "processor-bound": (2, 2),
    "too many": (2, 2),
    "lock-bound": (3, 6),
    "storage": (11, 13),
    "phase change": (24, 28),
    "foreign load": (7, 9),
    "best already": (5, 6),
    "no difference": (1, 2),
}
"""Load → the fewest and the most workers that are right in the end: within a tenth of the fewest that are needed."""


def best(name: str, numbers: range, since: float, until: float) -> float:
    return max(
        fixed(name, number, until).rate(since, until)
        for number in sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]})
    )


@pytest.mark.parametrize("name", NEAR)
def test_it_comes_close_to_the_best_fixed_number_with_no_more_workers_than_needed(name: str) -> None:
    load = LOADS[name]
    course = tuned(load, UNTIL)
    since = course.settled_at(load.change or 0.0)
    fewest, most = NEAR[name]
    assert fewest <= course.workers[-1] <= most
    assert course.rate(since, UNTIL) >= 0.95 * best(name, range(max(1, fewest - 1), most + 2), since, UNTIL)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_heavy_tail_in_which_trials_say_little_is_left_to_replay(seed: int) -> None:
    """Where blocks differ by chance more than numbers of workers do: 0.20 to 0.71 of the best without it."""
    course = tuned(LOADS["heavy tail"], UNTIL, seed)
    since = course.settled_at()
    assert course.rate(since, UNTIL) >= 0.9 * fixed("heavy tail", 58, UNTIL, seed).rate(since, UNTIL)


@pytest.mark.parametrize("name", ["no difference", "lock-bound", "heavy tail"])
def test_once_settled_there_is_at_most_one_change_a_minute_in_the_long_run(name: str) -> None:
    load = LOADS[name]
    course = tuned(load, 3000.0)
    settled = next(at for at, step in course.steps if step.what == "hold")
    assert course.changes(settled, 3000.0) <= (3000.0 - settled) / 60


def test_a_phase_change_wakes_it_and_an_unchanged_load_does_not() -> None:
    changing = tuned(LOADS["phase change"], UNTIL)
    woken = [at for at, step in changing.steps if step.what == "wake"]
    assert woken and all(at > 150 for at in woken)
    steady = tuned(LOADS["sleep-bound"], 1000.0)
    assert not [step for _, step in steady.steps if step.what == "wake"]


def test_every_step_says_why_what_was_expected_and_what_came_of_it() -> None:
    steps = [step for _, step in tuned(LOADS["sleep-bound"], 60.0).steps]
    assert all(step.why for step in steps)
    trials = [step for step in steps if step.what == "try"]
    ends = [step for step in steps if step.what in ("keep", "back")]
    assert trials and all(step.predicted and step.measured for step in trials)
    assert ends and all(step.measured for step in ends)
    for trial, end in zip(trials, ends, strict=False):
        assert end.predicted == trial.predicted
        assert end.workers == (trial.workers if end.what == "keep" else trial.before)


class Driven:
    """A tuner over a simulated loader, step by step."""

    def __init__(self, load: Load, **more: object) -> None:
        self.world = load.world(load.start)
        self.rank = self.world.ranks[0]
        self.tuner = Tuner(load.start, load.most, **more)  # type: ignore[arg-type]
        self.course = Course()

    def look(self, may_try: bool = True, **changed: object) -> Step | None:
        self.world.run(self.world.now + LOOK)
        reading = self.world.reading(self.rank)
        values = {name: getattr(reading, name) for name in Reading.__slots__}
        step = self.tuner.observe(Reading(**{**values, **changed}), may_try)
        if step is not None and step.workers != self.rank.target:
            self.world.resize(self.rank, step.workers)
        return step

    def steps(self, seconds: float, **changed: object) -> list[Step]:
        found = (self.look(**changed) for _ in range(int(seconds / LOOK)))  # type: ignore[arg-type]
        return [step for step in found if step is not None]


def test_a_pin_holds_until_it_is_released() -> None:
    driven = Driven(LOADS["sleep-bound"])
    driven.steps(20.0)
    driven.tuner.pin(3)
    driven.world.resize(driven.rank, 3)
    assert driven.steps(600.0) == [] and driven.tuner.state == "pinned"
    driven.tuner.release()
    assert driven.steps(60.0) and driven.rank.target > 30


def test_nothing_is_tried_without_permission_or_while_nothing_can_be_told() -> None:
    driven = Driven(LOADS["sleep-bound"])
    assert driven.steps(60.0, steady=False) == []
    assert driven.steps(60.0, may_try=False) == [] and driven.tuner.wants
    assert driven.steps(5.0)[0].what == "try"


def test_memory_that_is_short_stops_growth_and_an_alarm_halves() -> None:
    driven = Driven(LOADS["sleep-bound"])
    assert all(step.workers <= 2 for step in driven.steps(60.0, pressed=True))
    driven.steps(60.0)
    before = driven.rank.target
    halved = driven.look(alarm=True)
    assert halved is not None and (halved.what, halved.workers) == ("halve", before // 2)


def test_full_processors_stop_growth() -> None:
    driven = Driven(Load(varied(("cpu", 0.04)), constant(0.002), 2, stations=LOADS["processor-bound"].stations))
    assert all(step.workers <= 2 for step in driven.steps(120.0))


@settings(max_examples=SCHEDULES, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.floats(0.004, 0.4),
    st.floats(0.001, 0.05),
    st.lists(st.tuples(st.sampled_from(["pin", "release", "pause", "alarm", "short", "run"]), st.integers(1, 60))),
)
def test_whatever_happens_it_keeps_to_its_bounds_and_to_people(
    start: int, most: int, service: float, gap: float, schedule: list[tuple[str, int]]
) -> None:
    start = min(start, most)
    driven = Driven(Load(varied(("sleep", service)), constant(gap), start, most))
    pinned: int | None = None
    for what, number in schedule:
        if what == "pin":
            pinned = min(number, most)
            driven.tuner.pin(pinned)
            driven.world.resize(driven.rank, pinned)
        elif what == "release" and pinned is not None:
            pinned = None
            driven.tuner.release()
        changed = {"steady": what != "pause", "alarm": what == "alarm", "pressed": what == "short"}
        for _ in range(number):
            before = driven.rank.target
            step = driven.look(**changed)
            if step is None:
                continue
            assert pinned is None, "a pin was not kept"
            assert 1 <= step.workers <= most
            assert what not in ("alarm", "short") or step.workers <= before
            assert what != "pause" or step.workers == before
    assert pinned is None or driven.rank.target == pinned


def test_the_first_trial_after_a_search_waits_two_minutes_and_each_next_twice_as_long() -> None:
    course = tuned(LOADS["best already"], 2000.0)
    holds = [at for at, step in course.steps if step.what == "hold"]
    trials = [at for at, step in course.steps if step.what == "try"]
    for number, hold in enumerate(holds[:-1]):
        following = min(at for at in trials if at > hold)
        assert following - hold >= FIRST_HOLD * 2**number * 0.99


def test_what_replay_says_is_tried_as_soon_as_it_says_something() -> None:
    """With a heavy tail, single blocks say little: what a simulation of recorded batches says is tried at once."""
    load = LOADS["heavy tail"]
    driven = Driven(load)
    driven.tuner = Tuner(load.start, load.most, seed=lambda _: (45, 125.0) if driven.rank.batches >= 24 else None)
    steps = driven.steps(60.0)
    (seeded,) = [step for step in steps if step.why == "replay says so"]
    assert (seeded.workers, seeded.predicted) == (45, 125.0)
    course = Course()
    while driven.world.now < UNTIL:
        driven.look()
        note(course, driven.world)
    assert course.rate(60.0, UNTIL) >= 0.95 * fixed("heavy tail", 45, UNTIL).rate(60.0, UNTIL)
