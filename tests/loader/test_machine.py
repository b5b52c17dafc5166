"""A real pool, driven at random: next, pause, resume, resize, kill, checkpoint. What comes out never changes.

Hypothesis chooses the commands. PENSTOCK_SOAK=<seconds> lets it go on for so long (`make soak`).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from penstock import DataLoader
from penstock.protocol import Resize

from tests.loader.scenarios import SavedStream, kill, plain, worker_pids, zygote_pid
from tests.loader.support import Draws

SOAK = float(os.environ.get("PENSTOCK_SOAK", "0"))
EPOCHS = 3
SHARDS = 3
LENGTH, BATCH = 40, 2
MOST = 4
SEED = 77

pytestmark = [pytest.mark.usefixtures("nothing_left_behind"), pytest.mark.timeout(2 * SOAK + 300)]


def make(method: str, workers: int, persistent: bool, sharded: bool = False) -> DataLoader[Any]:
    return DataLoader(
        SavedStream(LENGTH) if sharded else Draws(LENGTH),
        BATCH,
        shuffle=None if sharded else True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(SEED),
        multiprocessing_context=method,
        persistent_workers=persistent,
        prefetch_factor=2,
        max_workers=MOST,
        max_retries=1000,  # whoever kills at random may hit the same batch often
    )


@cache
def undisturbed(persistent: bool, sharded: bool) -> list[list[tuple[Any, str]]]:
    """Every batch of every epoch with the digest after it, from workers that nobody touches."""
    loader = make("fork", SHARDS if sharded else 1, persistent, sharded)
    epochs = [[(plain([batch])[0], loader.stats().digest) for batch in loader] for _ in range(EPOCHS)]
    loader.close()
    return epochs


class Machine(RuleBasedStateMachine):
    """The model is a position in the undisturbed run."""

    method = "fork"
    sharded = False
    epochs = EPOCHS

    def __init__(self) -> None:
        super().__init__()
        self.loader: DataLoader[Any] | None = None
        self.iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.position = 0
        self.paused = False

    @initialize(workers=st.integers(1, 3), persistent=st.booleans())
    def begin(self, workers: int, persistent: bool) -> None:
        self.persistent = persistent and not self.sharded
        self.expected = undisturbed(self.persistent, self.sharded)
        self.loader = self.make(SHARDS if self.sharded else workers)
        self.iterator = iter(self.loader)

    def make(self, workers: int) -> DataLoader[Any]:
        return make(self.method, workers, self.persistent, self.sharded)

    @property
    def running(self) -> DataLoader[Any]:
        assert self.loader is not None
        return self.loader

    @precondition(lambda self: not self.paused)
    @rule(count=st.integers(1, 6))
    def next(self, count: int) -> None:
        """Take batches, over the end of an epoch if need be."""
        for _ in range(count):
            if self.epoch == self.epochs:
                return
            self._take_one()

    def _take_one(self) -> None:
        assert self.iterator is not None
        try:
            batch = plain([next(self.iterator)])[0]
        except StopIteration:
            assert self.position == len(self.expected[self.epoch])
            self.epoch += 1
            self.position = 0
            if self.epoch < self.epochs:
                self.iterator = iter(self.running)
            return
        value, digest = self.expected[self.epoch][self.position]
        assert batch == value
        assert self.running.stats().digest == digest
        self.position += 1

    @rule(resume_after=st.sampled_from([None, 0.01, 3600.0]))
    def pause(self, resume_after: float | None) -> None:
        assert self.running.pause(resume_after).state == "applied"
        self.paused = resume_after != 0.01

    @rule()
    def resume(self) -> None:
        assert self.running.resume().state == "applied"
        self.paused = False

    @rule(workers=st.integers(1, MOST), wait=st.booleans())
    def resize(self, workers: int, wait: bool) -> None:
        ticket = self.running._penstock.request(Resize(workers))
        if wait:
            # Accepted: a dead zygote is replaced by the iterating thread, which is this one.
            assert ticket.wait(1.0).state in ("applied", "pending", "accepted")
        snapshot = self.running.stats()
        assert workers in (snapshot.target, snapshot.pending)

    @rule(choice=st.integers(0, MOST - 1))
    def kill_a_worker(self, choice: int) -> None:
        pids = worker_pids(self.running)
        if pids:
            try:
                kill(pids[choice % len(pids)])
            except ProcessLookupError:
                return

    @rule()
    def kill_the_zygote(self) -> None:
        # Preconditions must not depend on timing, or Hypothesis takes every failure for a flaky test.
        try:
            kill(zygote_pid(self.running, 0.05))
        except (AssertionError, ProcessLookupError):
            return  # it was dead already

    @rule(workers=st.integers(1, 3))
    def checkpoint_and_restore(self, workers: int) -> None:
        """Go on in a fresh loader."""
        state = self.running.state_dict()
        self.running.close()
        self.loader = self.make(workers)
        self.loader.load_state_dict(state)
        self.paused = False
        if self.epoch < self.epochs:
            self.iterator = iter(self.loader)

    @precondition(lambda self: self.epoch < self.epochs and not self.sharded)
    @rule()
    def look_at_the_rest_inline(self) -> None:
        """The rest of the epoch without workers: random numbers are drawn elsewhere then, but not the indices."""
        inline: DataLoader[Any] = DataLoader(
            Draws(LENGTH), BATCH, shuffle=True, generator=torch.Generator().manual_seed(SEED)
        )
        inline.load_state_dict(self.running.state_dict())
        rest = [batch[0].tolist() for batch in inline]
        assert rest == [value[0] for value, _ in self.expected[self.epoch][self.position :]]
        assert inline.stats().digest == self.expected[self.epoch][-1][1]

    @precondition(lambda self: self.loader is not None)
    @invariant()
    def the_state_is_what_was_asked_for(self) -> None:
        told = self.running.stats()
        if self.paused:
            assert told.state == "paused"
        assert told.digest == self._digest()

    def _digest(self) -> str:
        if self.position:
            return self.expected[self.epoch][self.position - 1][1]
        return self.expected[self.epoch - 1][-1][1] if self.epoch else "0" * 32

    def teardown(self) -> None:
        if self.loader is None:
            return
        try:
            self.loader.resume()
            while self.epoch < self.epochs:
                self._take_one()
        finally:
            self.iterator = None
            self.loader.close()


class SpawnMachine(Machine):
    method = "spawn"


class ShardedMachine(Machine):
    """An iterable-style dataset that saves its position. One epoch: in the next the shards are others."""

    sharded = True
    epochs = 1


def drive(machine: type[Machine], examples: int, steps: int, share: float) -> None:
    """Run some examples; with PENSTOCK_SOAK, so many as fit into its share of the time."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # A failing schedule is reported as it is: timing matters, so shrinking would mostly lose it.
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        database=None,
        print_blob=False,
    )
    end = time.monotonic() + SOAK * share
    attempt = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of recoveries
        while attempt == 0 or time.monotonic() < end:
            # Always the same schedules first, so that a failure can be looked at; then ever new ones.
            run_state_machine_as_test(seed(attempt)(machine), settings=chosen)
            attempt += 1


def test_a_forked_pool_keeps_the_stream_whatever_happens_to_it() -> None:
    drive(Machine, examples=5, steps=25, share=0.5)


def test_a_sharded_pool_keeps_the_stream_whatever_happens_to_it() -> None:
    drive(ShardedMachine, examples=4, steps=15, share=0.25)


def test_a_spawned_pool_keeps_the_stream_whatever_happens_to_it() -> None:
    drive(SpawnMachine, examples=1, steps=8, share=0.25)
