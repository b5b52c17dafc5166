"""A profile while it is taken: gathers what samplers see, wherever they are, and tells it in parts.

It has a thread of its own, so that neither training nor the conductor's thread does any of this. It ends when its time
is over, when it is told to, and when the loader is closed or gone. Samplers are then told to stop, and what they saw
last is waited for, but not for long: a worker that has died says nothing more.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Hashable
from types import CodeType, TracebackType
from typing import Protocol, Self

from ..pool.signals import Latch
from ..protocol import ProfilePart
from .parts import PartWriter, apart
from .phases import PHASE_OF, is_idle
from .profile import Profile
from .sampler import Chunk, Sampler, Target
from .sightings import Sightings
from .tree import Intake

LOOK = 0.25
"""Seconds between two looks at what has come and at whether anybody wants it."""
LAST_WORDS = 1.0
"""Seconds for which what samplers saw last is waited for."""


class Sink(Protocol):
    """Where samplers' chunks go. Its methods may be called from any thread and return at once."""

    def sampled(self, source: Hashable, chunk: Chunk) -> None:
        """What one sampler saw; `source` is its own, and no other's in this profile."""

    def gone(self, source: Hashable) -> None:
        """Nothing more comes from there."""

    def look_at_this_thread(
        self, worker: int, words: memoryview | array[int], places: tuple[int, int] = (0, 1)
    ) -> None:
        """Called by a thread of this process that makes batches, before each.

        `places`: where in `words` it says in which state it is, and at which batch.
        """


class Profiling:
    """A profile that is being taken. In a `with` block it is stopped at the end; `profile` is what was seen so far."""

    def __init__(
        self,
        profile: Profile,
        seconds: float | None,
        roots: frozenset[CodeType],
        emit: Callable[[ProfilePart], None],
        end: Callable[[Profiling], None],
        wanted: Callable[[], bool],
    ) -> None:
        """`seconds`: None: until it is stopped. `roots` as in `Stacks`, for threads of this process. `emit` is given
        the parts, `end` is called to have samplers stop, and when it is not `wanted` any more, it ends.
        """
        self.profile = profile
        self.seconds = seconds
        self.sightings = Sightings(profile.tree)
        """For whoever wants to know what a worker did at a moment."""
        self.over = Latch()
        self._roots = roots
        self._emit = emit
        self._end = end
        self._wanted = wanted
        self._began = time.monotonic()
        self._told = 0.0
        self._chunks: deque[tuple[Hashable, Chunk]] = deque()
        self._intakes: dict[Hashable, Intake] = {}
        self._open: set[Hashable] = set()
        self._writer = PartWriter(profile.tree, profile.idle)
        self._sampler: Sampler | None = None
        """Of threads of this process, from the first one on."""
        self._starting = threading.Lock()
        self._stopping = Latch()

    def start(self) -> None:
        """Raises RuntimeError where there can be no more threads."""
        threading.Thread(target=self._run, name="loader-profile", daemon=True).start()

    def stop(self) -> None:
        """End it, soon."""
        self._stopping.set()

    def result(self) -> Profile:
        """Wait for its end; if that is interrupted, end it."""
        try:
            self.over.wait()
        except BaseException:
            self.stop()
            raise
        return self.profile

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.over.wait(2 * LAST_WORDS)

    # -- where samplers' chunks go -----------------------------------------------------------------------------

    def sampled(self, source: Hashable, chunk: Chunk) -> None:
        self._chunks.append((source, chunk))
        if chunk.last:
            self._open.discard(source)
        else:
            self._open.add(source)

    def gone(self, source: Hashable) -> None:
        self._open.discard(source)

    def look_at_this_thread(
        self, worker: int, words: memoryview | array[int], places: tuple[int, int] = (0, 1)
    ) -> None:
        sampler = self._sampler
        if (sampler is not None and sampler.watches(words)) or self._stopping.is_set():
            return
        with self._starting:  # a Ctrl-C may end this at any point: what was begun is then gone on with
            if self._stopping.is_set():
                return
            if self._sampler is None:
                self._sampler = Sampler(
                    self.profile.rate, lambda chunk: self.sampled(chunk.source, chunk), self._roots, is_idle
                )
            if not self._sampler.is_running:
                self._sampler.start()
            self._sampler.watch(Target.this_thread(worker, words, places))

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._patience()) and self._wanted():
                self._gather()
                lasted = time.monotonic() - self._began
                if self.seconds is not None and lasted >= self.seconds:
                    break
                if lasted - self._told >= apart(self._told):
                    self._tell(lasted, ended=False)
        finally:
            try:
                self._finish()
            finally:
                self.over.set()

    def _patience(self) -> float:
        if self.seconds is None:
            return LOOK
        return max(min(LOOK, self._began + self.seconds - time.monotonic()), 0.0)

    def _finish(self) -> None:
        lasted = time.monotonic() - self._began
        self._stopping.set()
        self._end(self)
        with self._starting:
            if self._sampler is not None:
                self._sampler.stop()
        until = time.monotonic() + LAST_WORDS
        while self._open and time.monotonic() < until:
            time.sleep(0.01)
        self._gather()
        self.sightings.answer(last=True)
        self._tell(lasted, ended=True)

    def _gather(self) -> None:
        profile = self.profile
        while self._chunks:
            source, chunk = self._chunks.popleft()
            intake = self._intakes.get(source)
            if intake is None:
                intake = self._intakes[source] = Intake(profile.tree, profile.idle, PHASE_OF)
            self.sightings.note(chunk.worker, chunk.until(), intake.take(chunk))
        self.sightings.answer()
        profile.seconds = time.monotonic() - self._began

    def _tell(self, lasted: float, *, ended: bool) -> None:
        profile = self.profile
        profile.seconds = self._told = lasted
        part = self._writer.write(profile.id, time.time(), profile.began, lasted, profile.rate, ended=ended)
        self._emit(part)
