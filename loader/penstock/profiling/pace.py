"""How soon a sampler gets the interpreter lock.

Python lets a thread that wants it wait for 5 ms before it asks for it, and of work that gives it up of itself more
often than that nothing else would ever be seen. More exactly: of each stretch of work between two places that give the
lock up, the first part, as long as the sampler waits before it asks, is never seen, and what comes last is seen in its
place. (Measured with samples of 0.18 ms, four a batch: 0.05 ms and the system's own 0.05 of patience with timers took
6 points from the first half of a sample. With 0.005 ms that is over, but 50 looks a second then cost 7 % of what cheap
samples bring, against 0.9 % with 0.05: a lock that is not being given up anyway is dear to take.) So:

1. A sampler's thread has the system wake it when it asked to be woken, not some time after.
2. While it sleeps, and so when it wakes and wants the lock, threads wait for `HASTE` only. As soon as it has the lock
   they wait as long as ever: the thread that it took the lock from would ask for it back at once, and they would take
   turns, each being woken for a few instructions, until the look is done.
3. A thread that has asked is woken again each time that this has passed, for as long as C code keeps the lock. Where
   that happens often, threads wait for longer: what is hidden then is still little beside the C code.
4. Where other Python threads share the process, and it would cost them much to take turns so often, threads wait for
   `PATIENCE`.
"""

from __future__ import annotations

import ctypes
import sys

HASTE = 50e-6
PATIENCE = 1e-3
"""Seconds."""
MOST_IN_VAIN = 20
"""Times that a sampler is woken for one look, on the mean, without getting the lock."""
_PR_SET_TIMERSLACK = 29


def be_punctual() -> None:
    """Have the system wake this thread, and no other, when it asked for it; where it refuses, it is woken later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Pace:
    """The switch interval, as samplers need it; all methods are called by their threads."""

    def __init__(self) -> None:
        self._samplers = 0
        self._before = self._set = 0.0
        """As it was without samplers, and as they set it last; 0: they have not. Seconds."""
        self._haste = self._wanted = HASTE
        """What threads would wait for if there were no others, and what they are to wait for. Seconds."""
        self._looks = self._in_vain = 0
        """Since the pace was last chosen; `note` says of what."""

    def begin(self) -> None:
        self._samplers += 1
        if self._samplers == 1:
            self._before, self._set, self._haste = sys.getswitchinterval(), 0.0, HASTE
        self.choose(1)

    def note(self, in_vain: int) -> None:
        """A look was taken; its thread had been woken so often without getting the lock."""
        self._looks += 1
        self._in_vain += in_vain

    def choose(self, targets: int) -> None:
        """Judge by the number of Python threads: those looked at, the sampler, and one of ours that rarely wakes."""
        most, in_vain = MOST_IN_VAIN * self._looks, self._in_vain
        self._looks = self._in_vain = 0
        if in_vain > most:
            self._haste = min(self._haste * 2, PATIENCE)
        elif in_vain < most / 4:
            self._haste = max(self._haste / 2, HASTE)
        alone = len(sys._current_frames()) <= targets + 2
        self._wanted = min(self._haste if alone else PATIENCE, self._before)

    def hurry(self) -> None:
        """A sampler is about to sleep: when it wakes it wants the lock soon."""
        self._apply(self._wanted)

    def rest(self) -> None:
        """It has the lock."""
        self._apply(self._before)

    def end(self) -> None:
        self._samplers -= 1
        if not self._samplers:
            self._apply(self._before)

    def _apply(self, interval: float) -> None:
        if not self._set or abs(sys.getswitchinterval() - self._set) < 1e-7:  # else somebody else has set it
            sys.setswitchinterval(interval)
            self._set = sys.getswitchinterval()


PACE = Pace()
