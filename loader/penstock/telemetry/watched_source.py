"""Anything that can be iterated as a source of snapshots and events.

What is seen from outside: every batch, how long training waited for it, and what is in it, as far as that can be
measured. Why training waited is not seen: all of it counts as starvation, or startup for the first batch. Queues,
workers and pinning are not seen either, and are told as unknown.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from ..pool.observer import Cause
from ..protocol import (
    Command,
    Config,
    Event,
    LoaderState,
    Outcome,
    PinStage,
    Processors,
    Queues,
    Snapshot,
    Stalls,
    Worker,
)
from ..sizes import look_into
from .errors import of_exception
from .ledger import Ledger
from .watched_epoch import WatchedEpoch

log = logging.getLogger("penstock")

UNSEEN = (
    "queues",
    "workers",
    "stalls",
    "pin",
    "recoveries",
    "processors",
    "times.reorder_stall_us",
    "times.pin_wait_us",
    "epoch_times.reorder_stall_us",
    "epoch_times.pin_wait_us",
)
"""What only the inside of a loader tells."""
NEVER_SEEN = ("cost", "slowest", "digest")
"""What only a loader of ours tells."""

_SIZED = (list, tuple, dict, set, frozenset, range)
"""Types whose length can be asked for without anything happening."""


class Inside(NamedTuple):
    """What is seen of the inside of a loader at one moment."""

    queues: Queues = Queues()
    """Depths of its queues."""
    workers: list[Worker] = []  # noqa: RUF012  # never changed
    """Its workers, as far as they can be seen."""
    pin: PinStage = PinStage()
    """What its pin stage did."""
    unknown: tuple[str, ...] = UNSEEN
    """Names of the fields of a snapshot that mean nothing."""
    processors: Processors = Processors()
    """Processors there are, and what others take of them."""


class WatchedSource:
    """A `Source`. It keeps neither the thing nor its iterators alive, and is gone when both are."""

    def __init__(self, name: str, config: Config, length: int | None = None) -> None:
        self.name = name
        self.started = time.time()
        self.gone = False
        self.waiting = 0
        """The thread that is in `next()`; 0: none."""
        self._config = config
        self._thing: weakref.ref[Any] | None = None
        self._epochs: dict[int, weakref.ref[WatchedEpoch]] = {}
        """Those that somebody has. Not changed but replaced: others read it without a lock."""
        self._told_length = length
        """What `len()` of the thing gave, if anybody has asked."""
        self._length: int | None = None
        """Of the epoch under way, in batches."""
        self._ledger = Ledger()
        self._uncounted: set[str] = set()
        """`samples`, `bytes`: a batch has come of which they are not known."""

    def attach(self, thing: Any) -> None:
        """This is what training has. It is not kept alive."""
        self._thing = weakref.ref(thing, self._check_gone)

    def give_up(self) -> None:
        """Something of ours failed: training goes on unwatched, and the dashboard is told goodbye."""
        if not self.gone:
            self.gone = True
            log.warning("%s is not watched any more; it works as before", self.name, exc_info=True)

    # -- in the training thread -----------------------------------------------------------------------------

    def begin(self, epoch: WatchedEpoch) -> int:
        """An epoch begins; returns its number."""
        number = self._ledger.next_epoch()
        self._length = epoch.length = self._length_of(epoch)
        living = {n: each for n, each in self._epochs.items() if each() is not None}
        self._epochs = {**living, number: weakref.ref(epoch, self._check_gone)}
        return number

    def enter(self, epoch: WatchedEpoch) -> None:
        """Training asks for a batch."""
        self._ledger.enter(epoch.number)
        self._ledger.times.wait(time.monotonic_ns(), Cause.STARVATION if epoch.batches else Cause.STARTUP)

    def leave(self, epoch: WatchedEpoch, batch: Any) -> None:
        """Training gets it."""
        ledger = self._ledger
        ledger.times.leave(time.monotonic_ns())
        ledger.failed = False  # any more, where training has caught the error of a batch
        samples, size = self._measure(batch)
        ledger.batches += 1
        for name, amount in (("samples", samples), ("bytes", size)):
            if amount is None:
                self._uncounted.add(name)
        ledger.samples += samples or 0
        ledger.bytes += size or 0
        if epoch.length is not None and epoch.batches >= epoch.length:
            epoch.length = self._length = None  # it was wrong
        ledger.times.exit(time.monotonic_ns())

    def fail(self, epoch: WatchedEpoch, error: BaseException) -> None:
        """Training gets an error. It may catch it and go on."""
        now = time.monotonic_ns()
        self._ledger.times.leave(now)
        self._ledger.times.exit(now)
        self._ledger.end_epoch(epoch.number, "failed", epoch.batches, f"{type(error).__name__}: {error}")
        if isinstance(error, Exception):
            self._ledger.errors.note(of_exception(error, "loading", epoch=epoch.number, batch=epoch.batches))

    def end(self, epoch: WatchedEpoch, what: Literal["ended", "abandoned"]) -> None:
        """An epoch is over."""
        failed = self._ledger.failed
        if what == "ended":
            self._ledger.times.leave(time.monotonic_ns())
        self._ledger.leave(epoch.number)
        if not (failed and what == "abandoned"):  # of that was told
            self._ledger.end_epoch(epoch.number, what, epoch.batches)

    def note_length(self, length: int) -> None:
        """Training has asked how long the thing is. It is not asked by us: that may have effects."""
        self._told_length = length
        epoch = self._current()
        if epoch is not None and epoch.length is None and epoch.batches <= length:
            self._length = epoch.length = length

    def _length_of(self, _epoch: WatchedEpoch) -> int | None:
        """Batches in an epoch, where known."""
        return self._told_length

    def _measure(self, batch: Any) -> tuple[int | None, int | None]:
        """Samples and bytes of a batch."""
        return look_into(batch)

    # -- in any thread --------------------------------------------------------------------------------------

    def _current(self) -> WatchedEpoch | None:
        """The epoch that training asked for a batch of last."""
        reference = self._epochs.get(self._ledger.current)
        return None if reference is None else reference()

    def _check_gone(self, _reference: object = None) -> None:
        held = self._thing is None or self._thing() is not None
        self.gone = self.gone or not (held or any(epoch() is not None for epoch in self._epochs.values()))

    @property
    def was_interrupted(self) -> bool:
        return self._ledger.was_interrupted()

    def config(self) -> Config:
        return self._config

    def died_of(self, error: BaseException) -> None:
        self._ledger.died_of(error)

    def take_events(self) -> list[Event]:
        if self.gone:
            self._ledger.left_behind()
        return self._ledger.take_events()

    def apply(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        reason = f"a {self._config.kind} that is watched cannot be controlled"
        answer(Outcome(command.id, "rejected", time.time(), reason=reason[:256]))

    def snapshot(self, seq: int) -> Snapshot:
        epoch, ledger = self._current(), self._ledger
        inside = self._inside(epoch)
        now = time.monotonic_ns()
        unknown = [*inside.unknown, *NEVER_SEEN, *sorted(self._uncounted)]
        if "num_workers" in self._config.unknown:
            unknown.append("target")
        return Snapshot(
            seq,
            time.time(),
            self._state(),
            epoch=ledger.current,
            batch=ledger.batch if epoch is None or epoch.ended else epoch.batches,
            length=self._length,
            batches=ledger.batches,
            samples=ledger.samples,
            bytes=ledger.bytes,
            target=self._config.num_workers,
            queues=inside.queues,
            times=ledger.times.times(now),
            epoch_times=ledger.times.since(ledger.epoch_times, now),
            stalls=Stalls(ledger.stalls, ledger.stall_ns // 1000),
            pin=inside.pin,
            workers=inside.workers,
            dropped=ledger.dropped,
            unknown=unknown,
            processors=inside.processors,
            errors=ledger.errors.summary or UNSET,
        )

    def load(self) -> None:
        """How batches are made is not seen."""

    def _inside(self, _epoch: WatchedEpoch | None) -> Inside:
        return Inside()

    def _state(self) -> LoaderState:
        if self._ledger.errors.fatal:
            return "failed"
        if self.gone:
            return "closed"
        if self._ledger.failed:
            return "failed"
        if self._ledger.under_way():
            return "running"
        return "finished" if self._ledger.epochs else "idle"


def source_of(thing: object, name: str) -> WatchedSource:
    """For something of which nothing is known but that it can be iterated."""
    kind = type(thing)
    unknown = ["style", "num_workers", "max_workers", "start_method", "pin_memory"]
    unknown += ["persistent_workers", "in_order", "timeout", "memory_budget"]
    config = Config(kind=kind.__name__[:256], control=False, engine="torch", unknown=unknown)
    return WatchedSource(name, config, len(thing) if kind in _SIZED else None)  # type: ignore[arg-type]
