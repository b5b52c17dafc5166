"""The tuner at work on a pool in which anything may happen: many schedules, without a process or a thread.

A thousand of them with PENSTOCK_SOAK set (`make soak`).

Tuner, engine and conductor are the real ones; readings say whatever a schedule makes up, so that the tuner does all
that it can do, and workers come, die and are resized by hand in between."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, cast

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from penstock import DataLoader
from penstock.digest import Digest
from penstock.pool.map_window import MapWindow
from penstock.pool.requests import ChangeWorkers
from penstock.pool.window import Limits, Task
from penstock.protocol import Resize
from penstock.tuning.options import Autotune
from penstock.tuning.reading import Reading
from penstock.tuning.thread import Tuning

from tests.loader.pool.test_schedules import Trial
from tests.loader.pool.test_window import limits

if TYPE_CHECKING:
    from torch.utils.data import Dataset

MOST = 8
SCHEDULES = 1000 if "PENSTOCK_SOAK" in os.environ else 300
made = {"grown": 0, "shrunk": 0, "refused": 0, "pinned": 0}
"""What the tuners of all schedules did: a test in which they never do anything would show nothing."""


class Pool:
    """The trial's pool, as the engine asks it."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def resize(self, workers: int, ticket: Any) -> None:
        self.trial.conductor.request(ChangeWorkers(workers, ticket))


class Under:
    """An iterator with an epoch under way."""

    def __init__(self, trial: Trial) -> None:
        self.pool = Pool(trial)


class Tuned:
    """A trial, the engine that resizes its pool, and a tuner that is asked now and then."""

    def __init__(self, schedule: random.Random) -> None:
        self.schedule = schedule
        self.trial = Trial(schedule, 2)
        self.loader: Any = DataLoader(cast("Dataset[int]", range(4)), num_workers=2, max_workers=MOST, monitor=False)
        self.engine: Any = self.loader._penstock
        vars(self.engine)["_running"] = lambda: [Under(self.trial)]
        self.batches = 0
        self.waiting = self.busy = 0.0
        self.at = 0.0
        self.release()

    def release(self) -> None:
        self.engine.tuning = Tuning(self.engine, Autotune(), self.trial.conductor.target, MOST)

    def look(self) -> None:
        """Seconds pass, in which training waits or does not, and the tuner looks."""
        tuning, schedule, workers = self.engine.tuning, self.schedule, self.trial.conductor.target
        waits = schedule.choice([0.0, 0.02, 1.0])
        for _ in range(schedule.randint(1, 12)):
            self.at += 1.0
            self.batches += 40
            self.busy += workers
            self.waiting += waits
            step = tuning._tuner.observe(
                Reading(
                    at=self.at,
                    workers=workers,
                    batches=self.batches,
                    made=self.batches,
                    compute=self.at - self.waiting,
                    waiting=self.waiting,
                    busy=self.busy,
                    processor=0.1 * self.at,
                    queued=0.0,
                    processors=64.0,
                    alarm=schedule.random() < 0.02,
                )
            )
            if step is not None:
                pinned = tuning.pinned
                tuning._follow(self.engine, step)
                self.trial.step()
                moved = self.trial.conductor.target - workers
                made["grown"] += moved > 0
                made["shrunk"] += moved < 0
                made["refused"] += pinned is not None and step.workers != step.before
                workers = self.trial.conductor.target

    def pin(self) -> None:
        """A person chooses."""
        workers = self.schedule.randint(1, MOST)
        self.engine.request(Resize(workers))
        self.trial.step()
        made["pinned"] += 1

    def check_pin(self) -> None:
        pinned = self.engine.tuning.pinned
        assert pinned is None or self.trial.conductor.target == pinned


def epoch(schedule: random.Random, bounds: Limits, count: int, tuned: bool) -> str:
    """The digest of an epoch, tuned and steered or not."""
    run = Tuned(schedule)
    trial = run.trial
    trial.begin(0, MapWindow(bounds), 2)
    trial.epoch.window.waiting.extend(Task(number, [number, 7 * number]) for number in range(count))
    for _ in range(schedule.randint(20, 120)):
        happens = schedule.random()
        if tuned and happens < 0.3:
            run.look()
        elif tuned and happens < 0.34:
            run.pin()
        elif tuned and happens < 0.36:
            run.release()
        else:
            trial.disturb(resizes=False)
        run.check_pin()
    trial.finish(lambda: len(trial.got) == count)
    run.check_pin()
    trial.close()
    digest = Digest()
    for number, indices in enumerate(trial.got):
        digest.value = digest.after(0, number, indices, 0)
    return digest.hex()


@settings(max_examples=SCHEDULES, deadline=None, phases=[Phase.generate])
@given(number=st.integers(0, 2**40), bounds=limits(), count=st.integers(1, 14))
def test_the_digest_is_the_same_with_and_without_and_a_pin_holds(number: int, bounds: Limits, count: int) -> None:
    assert epoch(random.Random(number), bounds, count, True) == epoch(random.Random(number + 1), bounds, count, False)


def test_the_tuners_of_all_schedules_did_what_tuners_do() -> None:
    if not made["pinned"]:  # alone, or in another process than the schedules
        for number in range(200):
            epoch(random.Random(number), Limits(9, 10**6, 10**6, 9), 5, True)
    assert all(made.values()), made
