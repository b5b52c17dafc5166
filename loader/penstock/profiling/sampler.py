"""The sampler: a thread that looks, some 50 times a second, at which line other threads of its process are.

It needs no other process, no right and no signal. What it sees is what a look from outside would see, because:

1. **A look is one call of C code.** Phase, batch and all frames of a stack are read while the interpreter lock is held
   from the first to the last, so that they belong to one moment. No reference to a frame is left when the lock is let
   go: what a frame holds dies when and where it would without us.
2. **Looks are due at moments that nothing can follow**: one a period, each at another place within it. A look that
   comes late, because C code held the lock, or the machine was busy, stands for all that were due by then. A thread
   that holds the lock in C code lets go of it when that code returns to the interpreter, which is at the instruction
   that called it: so the right line is charged, with the time that really passed.
3. **The lock is asked for quickly.** Python lets a thread that wants it wait for 5 ms, and of work that gives it up of
   itself more often than that nothing else would ever be seen; of all work, not what comes first. See `pace`.
4. **The interpreter gives the lock up between some instructions only**: when a function is entered, after a call, at
   the end of a loop's body. Which functions the time since the last such point is charged to is read off the code
   in between: see `segments`. It is the one thing that a look from outside would see more exactly.
5. **Processor time** is a thread's own clock. Which stacks it goes to is decided by those looks that found the thread
   on a processor: the lock was taken, and its clock has run on since the last look, or it ran on while we looked. So a
   stack that sleeps gets none, and the sum is the clock's.

A Ctrl-C may come at any moment of `start`, also between the thread's start and our knowing of it. So a sampler counts
as running before its thread is there, and each thread has a `Run` of its own: if that was ended before it began, it
leaves at once.

The thread exists only while a profile is taken. It blocks all signals, so that those of the user's reach the threads
that they would reach without it, and is not among `threading.enumerate()`. A fork, of the user's in a worker say, waits
until the thread has ended and starts it again: it copies a process with no thread of ours and no lock that is held.
"""

from __future__ import annotations

import _thread
import os
import resource
import signal
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count, repeat
from operator import attrgetter, call, itemgetter
from types import CodeType
from typing import Any, NamedTuple

from .pace import PACE, be_punctual
from .segments import Place
from .stacks import News, Stacks

RATE = 50.0
"""Looks a second."""
DEEPEST = 256
"""Frames of a stack that are looked at, from the leaf on."""
APART = 0.5
"""Seconds between two chunks."""
_THREAD = getattr(resource, "RUSAGE_THREAD", None)
"""None: only Linux counts what one thread does."""
_GOLDEN = 0.6180339887498949

_sources = count()
_place = attrgetter("f_code", "f_lasti")
_clock = time.monotonic_ns

FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Signals that mean the very thread that they are sent to."""


class Target(NamedTuple):
    """A thread that is looked at."""

    worker: int
    """Its number among the loader's workers."""
    thread: int
    words: memoryview | array[int]
    """Where it says what it is doing."""
    places: tuple[int, int]
    """Where in them its state and its batch are."""
    clock: int | None
    """Its processor clock; None: the system has none."""

    @classmethod
    def this_thread(cls, worker: int, words: memoryview | array[int], places: tuple[int, int]) -> Target:
        thread = threading.get_ident()
        clock = time.pthread_getcpuclockid(thread) if hasattr(time, "pthread_getcpuclockid") else None
        return cls(worker, thread, words, places, clock)


class Look(NamedTuple):
    """What was seen of one thread at one moment."""

    moment: int
    """ns of the monotonic clock."""
    state: int
    """As on the board."""
    batch: int
    stack: int
    """Its number; -1: it had nothing to do."""
    wall: int
    """ns for which this look stands."""
    processor: int
    """ns of them on a processor."""


class Chunk(NamedTuple):
    """What a sampler has seen of one thread since its last chunk. The first one comes at once, and is empty."""

    source: int
    """The same for all chunks that number their stacks together; no two samplers of a process have the same."""
    worker: int
    news: News
    """Stacks that the looks of this chunk are the first to speak of."""
    looks: bytes
    """Rows of 64-bit integers, in the order of `Look`."""
    last: bool = False
    """Nothing more is looked at there."""

    def until(self) -> int:
        """The moment of the last look; 0: there is none."""
        return array("q", self.looks[-8 * len(Look._fields) :])[0] if self.looks else 0

    def rows(self) -> list[Look]:
        numbers = array("q", self.looks)
        return list(map(Look._make, zip(*[iter(numbers)] * len(Look._fields), strict=True)))


class Schedule:
    """The moments at which looks are due: one in each period, so that they meet no rhythm of the program's."""

    def __init__(self, start: int, rate: float) -> None:
        self._start = start
        self.period = int(1e9 / rate)
        self._done = 0
        """Periods whose look was taken."""

    def due(self) -> int:
        """When the next look is due, ns."""
        return self.moment(self._done)

    def moment(self, number: int) -> int:
        """When the look with this number is due, ns."""
        return self._start + number * self.period + int(number * _GOLDEN % 1.0 * self.period)

    def count(self, now: int) -> int:
        """How many looks were due since this was last asked; they are done from now on."""
        before = self._done
        passed = max((now - self._start) // self.period, before)
        self._done = passed
        if self.due() <= now:
            self._done += 1
        return self._done - before


class Looks:
    """What was seen of one thread since the last chunk."""

    def __init__(self, target: Target, roots: frozenset[CodeType], idle: Callable[[int], bool]) -> None:
        self.target = target
        self._source = next(_sources)
        self._stacks = Stacks(roots)
        self._idle = idle
        self._rows: list[tuple[int, int, int, int, int, bool]] = []
        self._processor = self._at_look = self._time()
        self._look = self._look_at(target)

    def add(self, moment: int, wall: int, locked: bool) -> bool:
        """Look at the thread; False if it is gone. `locked`: somebody held the interpreter lock when this was due."""
        before = self._time()
        seen: deque[Any] = deque()
        try:
            self._look(seen)
        except AttributeError:  # the outermost frame has no caller
            pass
        except KeyError:
            return False
        state, batch = seen.popleft(), seen.popleft()
        after = self._time()
        runs = after != before or (locked and before != self._at_look)
        self._at_look = after
        places: Sequence[Place] = list(seen)
        stack = -1 if self._idle(state) else self._stacks.number(places)
        self._rows.append((moment, state, batch, stack, wall, runs))
        return True

    def take(self, *, last: bool) -> Chunk:
        """What was seen since the last call."""
        rows, self._rows = self._rows, []
        running = [wall if runs else 0 for *_, wall, runs in rows]
        used = 0
        if last or any(running):  # else it waits for a look that finds the thread running
            now = self._time()
            used, self._processor = now - self._processor, now
        shares = _shared_out(used, running, [row[4] for row in rows])
        numbers = array("q")
        for (moment, state, batch, stack, wall, _), share in zip(rows, shares, strict=True):
            numbers.extend((moment, state, batch, stack, wall, share))
        return Chunk(self._source, self.target.worker, self._stacks.take_news(), numbers.tobytes(), last)

    def _time(self) -> int:
        try:
            return 0 if self.target.clock is None else time.clock_gettime_ns(self.target.clock)
        except OSError:  # the thread has ended
            return self._processor

    def _look_at(self, target: Target) -> Callable[[deque[Any]], None]:
        read, places = target.words.__getitem__, target.places
        frames, top = (sys._current_frames,), itemgetter(target.thread)

        def look(seen: deque[Any]) -> None:
            # All of this is done by `extend`, in C; see point 1.
            stack = accumulate(chain(map(top, map(call, frames)), repeat("f_back", DEEPEST)), getattr)
            seen.extend(chain(map(read, places), map(_place, stack)))

        return look


def _shared_out(whole: int, running: list[int], all_of_them: list[int]) -> list[int]:
    """Share processor time out over looks that found the thread running; over all, if none did."""
    parts = running if any(running) else all_of_them
    total = sum(parts)
    shares, given, seen = [], 0, 0
    for part in parts:
        seen += part
        upto = whole * seen // total if total else 0
        shares.append(upto - given)
        given = upto
    return shares


class Run:
    """The life of one thread of a sampler."""

    def __init__(self) -> None:
        self.halting = False
        """Set by who wants it to end."""
        self.bell = _thread.allocate_lock()
        """Held while there is nothing to hear of."""
        self.bell.acquire()
        self.over = _thread.allocate_lock()
        """Held by the thread while it does anything."""

    def halt(self) -> None:
        """Have the thread end, and wait for it."""
        self.halting = True
        if self.bell.locked():
            self.bell.release()
        with self.over:
            pass


class Sampler:
    """Looks at threads of this process from `start` to `stop`, and delivers what it saw twice a second."""

    def __init__(
        self,
        rate: float,
        deliver: Callable[[Chunk], None],
        roots: frozenset[CodeType],
        idle: Callable[[int], bool],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`deliver` is called in the sampler's thread; what it raises ends the sampler. `roots` as in `Stacks`.
        `idle`: whether a thread in this state has nothing to do. The sampler ends when it is not `wanted` any more.
        """
        self._deliver = deliver
        self._roots = roots
        self._idle = idle
        self._wanted = wanted
        self._rate = rate
        self._targets: dict[int, Looks] = {}
        self._schedule = Schedule(_clock(), rate)
        self._run = Run()
        """Of the thread that was started last."""

    def watch(self, target: Target) -> None:
        """Look at this thread, too, from now on. One that ends is forgotten. Called by one thread at a time."""
        looks = Looks(target, self._roots, self._idle)
        before = self._targets.get(target.thread)
        if before is not None:
            self._deliver(before.take(last=True))
        self._deliver(looks.take(last=False))
        self._targets = {**self._targets, target.thread: looks}

    def watches(self, words: memoryview | array[int]) -> bool:
        """Is a thread looked at that writes there?"""
        return any(looks.target.words is words for looks in self._targets.values())

    def start(self) -> None:
        """Raises RuntimeError where there can be no more threads."""
        self._schedule = Schedule(_clock(), self._rate)
        _running.add(self)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    @property
    def is_running(self) -> bool:
        return self in _running

    def stop(self) -> None:
        """End, and deliver what was seen last. May be called again."""
        if self in _running:
            _running.discard(self)
            self._run.halt()
            self._hand_over(last=True)

    def _launch(self) -> None:
        run = self._run = Run()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
            _thread.start_new_thread(self._look_until_halted, (run,))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _look_until_halted(self, run: Run) -> None:
        with run.over:
            if not run.halting:
                self._look(run)

    def _look(self, run: Run) -> None:
        PACE.begin()
        try:
            be_punctual()
            flush_at = _clock() + int(APART * 1e9)
            while not run.halting and self._wanted():
                now = self._wait(run.bell)
                if run.halting:
                    return
                if now >= flush_at:
                    flush_at = now + int(APART * 1e9)
                    self._hand_over()
                    PACE.choose(len(self._targets))
            if not run.halting:
                _running.discard(self)
                self._hand_over(last=True)
        except Exception:
            _running.discard(self)
        finally:
            PACE.end()

    def _wait(self, bell: _thread.LockType) -> int:
        """Sleep until a look is due, and take it. Returns the moment."""
        before = _waits()
        seconds = (self._schedule.due() - _clock()) / 1e9
        PACE.hurry()
        rung = seconds > 0 and bell.acquire(True, seconds)
        PACE.rest()
        now = _clock()
        if rung:
            return now
        waits = _waits() - before
        locked = waits > 1  # one for the sleep; another for the interpreter lock
        PACE.note(max(waits - 2, 0))
        wall = self._schedule.count(now) * self._schedule.period
        gone = [thread for thread, looks in self._targets.items() if wall and not looks.add(now, wall, locked)]
        for thread in gone:
            self._deliver(self._targets[thread].take(last=True))
            self._targets = {other: looks for other, looks in self._targets.items() if other != thread}
        return now

    def _hand_over(self, *, last: bool = False) -> None:
        for looks in self._targets.values():
            self._deliver(looks.take(last=last))


def _waits() -> int:
    """How often this thread has waited for anything."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nvcsw


_running: set[Sampler] = set()


def _before_fork() -> None:
    for sampler in tuple(_running):
        sampler._run.halt()


def _after_fork_in_parent() -> None:
    for sampler in tuple(_running):
        try:
            sampler._launch()
        except RuntimeError:  # there may be no more threads
            _running.discard(sampler)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_running.clear)
