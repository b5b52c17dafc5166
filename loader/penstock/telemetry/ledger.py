"""What one loader has done so far. Iterators and pools write to it; it refers to neither, nor to the loader.

Batches, samples and bytes are counted by the iterating thread, stalls, recoveries and sample costs by the conductor's;
rings are deques, which any thread may append to. It takes no lock, but for the pin stages, of which two pools have two.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any, Literal

from ..digest import Digest
from ..insight.receipts import Receipts
from ..insight.recording import Recording, Turn
from ..protocol import EpochEvent, Event, PinMode, PinStage, SampleCost, WorkerEvent
from .errors import ErrorLog
from .spans import SpanRing
from .times import TimeAccount

Counts = tuple[int, int, int, bytes]
"""Batches, samples and bytes yielded, and the digest over them."""

MOST_EVENTS = 1024
"""Events kept for the publisher; on overflow the oldest goes."""


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
        self.slowest: list[tuple[str, int]] = []
        self.warned = False
        """Training was told, once, that workers die."""
        self.warning = ""
        """What training is still to be told."""
        self.failed = False
        """The last epoch ended with an error of the pool."""
        self.errors = ErrorLog(self.emit)
        self.spans = SpanRing()
        self.recording = Recording()
        """What replay needs to know of the last batches."""
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
        self.processor_mark = time.process_time_ns(), self.batches
        self.emit(EpochEvent(time.time(), "started", number))
        return number

    def enter(self, epoch: int) -> None:
        """`next()` of an epoch is called. There may be several under way, one within the other, say."""
        self._under_way.add(epoch)
        self.current = epoch
        before, self.asked = self.asked, time.monotonic_ns()
        own = self.times.enter(self.asked)
        if own > 0:
            self.recording.turns.append(Turn((self.asked - own - before) / 1e9, own / 1e9))

    def leave(self, epoch: int) -> None:
        """Nobody iterates over this epoch any more: the clock stands still, unless there is another one."""
        if epoch in self._under_way:
            self._under_way.remove(epoch)
            now = time.monotonic_ns()
            if self._under_way:
                self.times.exit(now)
            else:
                self.times.stop(now)

    def under_way(self) -> bool:
        """Does somebody iterate over an epoch?"""
        return bool(self._under_way)

    def end_epoch(
        self, number: int, what: Literal["ended", "abandoned", "failed"], batches: int, reason: str = ""
    ) -> None:
        self.failed = what == "failed"
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

    def take_events(self) -> list[Event]:
        """What has happened since the last call, oldest first."""
        events: list[Event] = []
        while self._events:
            events.append(self._events.popleft())
        spans = self.spans.take(time.monotonic_ns(), time.time())
        if spans is not None:
            events.append(spans)
        return events
