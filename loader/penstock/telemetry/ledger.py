"""What one loader has done so far. Iterators and pools write to it; it refers to neither, nor to the loader.

Batches, samples and bytes are counted by the iterating thread, stalls, recoveries and sample costs by the conductor's;
rings are deques, which any thread may append to. It takes no lock, but for the pin stages, of which two pools have two.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from threading import get_ident
from typing import Any, Literal

from msgspec.structs import replace

from ..digest import Digest
from ..insight.receipts import Receipts
from ..insight.recording import Recording, Turn
from ..profiling.sightings import Sightings
from ..protocol import (
    EpochEvent,
    Event,
    HotLine,
    PinMode,
    PinStage,
    Quarantined,
    SampleCost,
    SlowSample,
    WorkerEvent,
)  # fmt: skip
from ..usage import training_ns
from . import nesting
from .bad import BadSamples
from .errors import ErrorLog, of_bad
from .exits import failed_exit
from .hangs import HangWatch
from .spans import SpanRing
from .times import TimeAccount

Counts = tuple[int, int, int, bytes]
"""Batches, samples and bytes yielded, and the digest over them."""

MOST_EVENTS = 1024
"""Events kept for the publisher; on overflow the oldest goes."""
CROWD = 8
"""So many workers that start, or leave, one after the other are told as one event."""


class PinTally:
    """What passed the pin stages of a loader's pools. Written by their threads."""

    def __init__(self) -> None:
        self.mode: PinMode = "off"
        self._batches = self._bytes = self._ns = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int, nanoseconds: int) -> None:
        with self._lock:
            self._batches += 1
            self._bytes += nbytes
            self._ns += nanoseconds

    def counters(self) -> PinStage:
        return PinStage(self.mode, self._batches, self._bytes, self._ns // 1000)


class Ledger:
    """Counters, times and events of one loader since it was made."""

    def __init__(self) -> None:
        self.made = time.time()
        self.digest = Digest()
        self.times = TimeAccount()
        self.epoch_times = TimeAccount()
        """`times` as of the beginning of the epoch under way."""
        self.epochs = 0
        """Epochs started."""
        self.batches = 0
        """Batches yielded."""
        self.samples = 0
        self.bytes = 0
        self.stalls = 0
        """Reorder stalls ended."""
        self.stall_ns = 0
        self.recoveries = 0
        """Dead workers replaced."""
        self.batch = 0
        """Batches yielded in the current epoch."""
        self.current = 0
        """The epoch that was begun last, or asked for a batch after that."""
        self.cost = SampleCost()
        """Sample times of the last epoch that ended."""
        self.slowest: list[SlowSample] = []
        """Those of the last epoch that ended, if they are recorded."""
        self.sightings: Sightings | None = None
        """Where workers' stacks can be asked for, while a profile is taken."""
        self.hottest: list[HotLine] = []
        """What the last profile found, by each clock."""
        self.warned: set[str] = set()
        """What training was told of, or is to be."""
        self.warnings: deque[str] = deque()
        """What training is still to be told."""
        self.failed = False
        """The last epoch ended with an error of the pool."""
        self._abandoned = False
        """The last epoch to end was left before its end."""
        self.errors = ErrorLog(self.emit)
        self.bad = BadSamples()
        """Those that are still to be published."""
        self.spans = SpanRing()
        self.recording = Recording()
        """What replay needs to know of the last batches."""
        self.hangs = HangWatch(500_000_000, self.recording.turns)
        """Waits that last."""
        self.receipts = Receipts()
        """What changes of the number of workers brought."""
        self.processor_mark = (0, 0)
        """Processor time of this process, ns, and batches yielded, when the epoch under way began."""
        self.asked = 0
        """When `next()` was called last, ns of the monotonic clock."""
        self.pin = PinTally()
        self.dropped = 0
        self._under_way: set[int] = set()
        self._events: deque[Event] = deque()

    def next_epoch(self, first_batch: int = 0) -> int:
        """The number of the epoch that starts now, or goes on with that batch."""
        self.epochs += 1
        self.failed = False
        number = self.current = self.epochs - 1
        self.batch = first_batch
        self.epoch_times = self.times.copy(time.monotonic_ns())
        self.processor_mark = training_ns(), self.batches
        self.emit(EpochEvent(time.time(), "started", number))
        return number

    def enter(self, epoch: int) -> None:
        """`next()` of an epoch is called. There may be several under way, one within the other, say."""
        self._under_way.add(epoch)
        self.current = epoch
        before, self.asked = self.asked, time.monotonic_ns()
        if nesting.latest.get(get_ident()) is not self.times:
            nesting.turn_to(self.times, self.asked)
        own = self.times.enter(self.asked)
        if own > 0:
            self.recording.turns.append(_turn(Turn, ((self.asked - own - before) / 1e9, own / 1e9)))

    def leave(self, epoch: int) -> None:
        """Nobody iterates over this epoch any more: the clock stands still, unless there is another one."""
        if epoch in self._under_way:
            self._under_way.remove(epoch)
            now = time.monotonic_ns()
            if self._under_way:
                self.times.exit(now)
            else:
                self.times.stop(now)
                nesting.turn_back(self.times, now)

    def under_way(self) -> bool:
        """Does somebody iterate over an epoch?"""
        return bool(self._under_way)

    def was_interrupted(self) -> bool:
        """Was the last epoch left before its end, or has nobody said yet that it ended?"""
        return self._abandoned or self.under_way()

    def end_epoch(
        self, number: int, what: Literal["ended", "abandoned", "failed"], batches: int, reason: str = ""
    ) -> None:
        self.failed = what == "failed"
        self._abandoned = what == "abandoned"
        if number == self.current:
            self.batch = batches
        self.emit(EpochEvent(time.time(), what, number, batches, reason[:16384]))

    def after(self, epoch: int, batch: int, indices: Any, seed: int, samples: int, nbytes: int) -> Counts:
        """The counts when one batch more is yielded."""
        digest = self.digest.after(epoch, batch, indices, seed)
        return self.batches + 1, self.samples + samples, self.bytes + nbytes, digest

    def worker(
        self,
        what: Literal["born", "retired", "died"],
        worker: int,
        pid: int,
        exitcode: int = 0,
        signal: str = "",
        batch: int = -1,
        retried: bool = False,
    ) -> None:
        """A worker was born, retired or died."""
        self.emit(WorkerEvent(time.time(), what, worker, pid, exitcode, signal, batch, retried))

    def emit(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > MOST_EVENTS:
            with contextlib.suppress(IndexError):  # they were taken just now
                self._events.popleft()
                self.dropped += 1

    def found_bad(self, sample: Quarantined) -> None:
        """A sample was found to be bad, and tolerated."""
        self.bad.add(sample)
        self.errors.note(of_bad(sample))

    def died_of(self, error: BaseException) -> None:
        """The process ends with this. An exit before a batch was asked for was caught: it is not how it ends."""
        exit = failed_exit()
        if exit is None or exit.reason is not error or exit.at >= self.asked:
            self.errors.died_of(error)

    def left_behind(self) -> None:
        """Nobody has the loader any more, or it was closed. If the process exits for an error, it died of that."""
        exit = failed_exit()
        if exit is not None:
            self.died_of(exit.reason)

    def take_events(self) -> list[Event]:
        """What has happened since the last call, oldest first."""
        events: list[Event] = []
        while self._events:
            events.append(self._events.popleft())
        events = _in_crowds(events)
        events.extend(self.bad.take())
        spans = self.spans.take(time.monotonic_ns(), time.time())
        if spans is not None:
            events.append(spans)
        return events


_turn = tuple.__new__
"""As `Turn(…)`, in half the time: there is one with every batch."""


def _in_crowds(events: list[Event]) -> list[Event]:
    """The same, with workers that start or leave in crowds told as one: nobody reads 64 lines of births."""
    told: list[Event] = []
    for what, group in itertools.groupby(events, key=_coming_or_going):
        crowd = list(group)
        if what and len(crowd) >= CROWD:
            first, *rest = (each for each in crowd if isinstance(each, WorkerEvent))
            told.append(replace(first, others=[(each.worker, each.pid) for each in rest]))
        else:
            told += crowd
    return told


def _coming_or_going(event: Event) -> str:
    return event.what if isinstance(event, WorkerEvent) and event.what != "died" else ""
