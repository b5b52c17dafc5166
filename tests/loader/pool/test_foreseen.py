"""The conductor with an epoch that is foreseen while another one is under way: whatever happens to workers, and whether
that epoch is begun or another in its place, every batch comes once and in order, and what is thrown away leaves nothing
behind. No process, no thread."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock.pool.epoch import Epoch
from penstock.pool.map_window import MapWindow
from penstock.pool.requests import BeginEpoch, Foresee, LeaveEpoch
from penstock.pool.window import Limits, Task
from penstock.telemetry.times import TimeAccount

from tests.loader.pool.test_schedules import Trial, many, schedules
from tests.loader.pool.test_window import limits


class Edges(Trial):
    """A training that goes over several epochs, of which the next may be foreseen."""

    def __init__(self, schedule: random.Random, workers: int, bounds: Limits, in_order: bool) -> None:
        super().__init__(schedule, workers, crews=schedule.randint(1, 2))
        self.bounds, self.in_order = bounds, in_order
        self.foreseen: Epoch | None = None
        self.taken_in_all = 0

    def prepare(self, number: int) -> Epoch:
        bounds = self.bounds
        own = Limits(bounds.tasks, bounds.budget, bounds.ceiling, bounds.floor)
        return Epoch(number, MapWindow(own, self.in_order), TimeAccount())

    def start(self, number: int, *, as_foreseen: bool) -> None:
        if self.foreseen is not None and as_foreseen:
            self.epoch, self.foreseen = self.foreseen, None
        else:
            self.epoch, self.foreseen = self.prepare(number), None
        self.got = []
        self.conductor.request(BeginEpoch(self.epoch, self.schedule.randint(1, 4)))

    def foresee(self, number: int, tasks: list[Any]) -> None:
        self.foreseen = self.prepare(number)
        self.foreseen.window.waiting.extend(Task(batch, indices) for batch, indices in enumerate(tasks))
        self.conductor.request(Foresee(self.foreseen))

    def take(self) -> None:
        before = len(self.got)
        super().take()
        self.taken_in_all += len(self.got) - before

    def still_held(self) -> int:
        """Batches whose memory nobody has given back."""
        return sum(1 for crew in self.crews for payload in crew.payloads if payload.value is not None)


@many
@given(
    schedule=schedules,
    bounds=limits(),
    workers=st.integers(1, 4),
    count=st.integers(1, 10),
    in_order=st.booleans(),
    epochs=st.integers(2, 4),
)
def test_a_foreseen_epoch_is_begun_or_thrown_away_and_no_batch_is_lost_doubled_or_taken_for_another(
    schedule: random.Random, bounds: Limits, workers: int, count: int, in_order: bool, epochs: int
) -> None:
    trial = Edges(schedule, workers, bounds, in_order)
    expected_in_all, guess = 0, 0
    guessed_tasks: list[Any] = []
    for number in range(epochs):
        guessed = trial.foreseen is not None
        right = schedule.random() < 0.5
        ahead = len(guessed_tasks) if guessed and right else 0
        trial.start(number, as_foreseen=right)
        # Where the guess was wrong, batches have the same numbers and other indices.
        version = guess if guessed and right else -number
        tasks = [[number, version, batch] for batch in range(count)]
        trial.epoch.window.waiting.extend(Task(batch, tasks[batch]) for batch in range(ahead, count))
        guess = schedule.randint(1, 10**6)
        guessed_tasks = [[number + 1, guess, batch] for batch in range(schedule.randint(1, count))]
        foresees = schedule.random() < 0.8
        before = schedule.randint(0, 80)
        for turn in range(schedule.randint(0, 120)):
            if turn == before and foresees:
                trial.foresee(number + 1, guessed_tasks)
            trial.disturb()
        left_early = number < epochs - 1 and schedule.random() < 0.3
        if not left_early:
            trial.finish(lambda: len(trial.got) == count)
            assert sorted(trial.got) == tasks
            expected_in_all += count
        assert not in_order or trial.got == tasks[: len(trial.got)]
        if schedule.random() < 0.7:
            trial.conductor.request(LeaveEpoch(trial.epoch))
            trial.step()
            for _ in range(schedule.randint(0, 40)):  # between epochs: training does something else
                trial.disturb(resizes=False)
    trial.step()  # what has arrived by now is looked at
    trial.close()
    assert trial.still_held() == trial.taken_in_all, "what training did not take was not given back"
    assert trial.ledger.recording.arrived >= expected_in_all


@many
@given(schedule=schedules, workers=st.integers(1, 3), count=st.integers(1, 6), deep=st.integers(1, 9))
def test_batches_of_a_foreseen_epoch_are_told_of_when_it_begins_and_never_if_it_does_not(
    schedule: random.Random, workers: int, count: int, deep: int
) -> None:
    trial = Edges(schedule, workers, Limits(deep, 10**6, 10**6, deep), True)
    trial.ledger.spans.watch(0)
    told: list[tuple[int, int]] = []

    def listen() -> list[tuple[int, int]]:
        spans = trial.ledger.spans.take(0, 0.0)
        told.extend((span.epoch, span.batch) for span in (spans.spans if spans else ()))
        return sorted(told)

    trial.start(0, as_foreseen=False)
    trial.epoch.window.waiting.extend(Task(batch, [0, batch]) for batch in range(count))
    trial.foresee(1, [[1, batch] for batch in range(count)])
    trial.finish(lambda: len(trial.got) == count)
    for _ in range(schedule.randint(0, 60)):
        trial.disturb(most_deaths=0, resizes=False)
    assert listen() == [(0, batch) for batch in range(count)]
    right = schedule.random() < 0.5
    trial.start(1, as_foreseen=right)
    tasks = [[1, batch] if right else [1, -batch] for batch in range(count)]
    if not right:
        trial.epoch.window.waiting.extend(Task(batch, indices) for batch, indices in enumerate(tasks))
    trial.finish(lambda: len(trial.got) == count)
    assert trial.got == tasks
    assert listen() == [(epoch, batch) for epoch in range(2) for batch in range(count)]
    assert trial.ledger.recording.arrived >= 2 * count
    assert not right or trial.ledger.recording.arrived == 2 * count
    trial.close()


@many
@given(schedule=schedules, workers=st.integers(1, 4), count=st.integers(1, 10), ahead=st.integers(1, 10))
def test_both_epochs_together_keep_to_the_window(schedule: random.Random, workers: int, count: int, ahead: int) -> None:
    trial = Edges(schedule, workers, Limits(10**3, 40, 40, 1), True)
    trial.start(0, as_foreseen=False)
    trial.epoch.window.waiting.extend(Task(batch, [0, batch]) for batch in range(count))
    trial.foresee(1, [[1, batch] for batch in range(ahead)])
    foreseen: Any = trial.foreseen
    for _ in range(150):
        trial.disturb(most_deaths=0)
        most = 3 * 5  # tasks for as many workers as a disturbance may ask for
        windows = [trial.epoch.window, foreseen.window]
        in_flight = sum(each.unfinished + each.held + each.delivered for each in windows) - trial.epoch.taken
        assert in_flight <= most
        assert foreseen.window.unfinished + foreseen.finished == 0 or not trial.epoch.window.waiting
    trial.close()
