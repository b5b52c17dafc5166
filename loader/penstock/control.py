"""What comes of a pause, resume or resize."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from .pool.signals import Latch
from .protocol import CommandState

LONGEST_PROFILE, HIGHEST_RATE = 3600, 200
"""What a profile may be asked for: seconds, looks a second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call of resize, pause or resume."""

    action: str
    """resize, pause, resume: as in `protocol.Order`."""
    state: CommandState
    """applied; pending (from the next epoch on); superseded (by a newer one); rejected; or accepted: under way."""
    asked: int | None = None
    """Workers asked for."""
    before: int | None = None
    """Workers there were."""
    actual: int | None = None
    """Workers there are."""
    at_batch: int | None = None
    """Batch index from which it holds."""
    took: float = 0.0
    """Seconds from the call to its effect."""
    reason: str = ""


class Ticket:
    """Follows one call until its outcome is known."""

    def __init__(self, action: str, asked: int | None = None, before: int | None = None) -> None:
        self._outcome = Outcome(action, "accepted", asked, before)
        self._born = time.monotonic()
        self._known = Latch()
        self._final = False
        self._watchers: list[Callable[[Ticket], None]] = []
        self._lock = threading.Lock()

    @property
    def outcome(self) -> Outcome:
        return self._outcome

    def settle(
        self, state: CommandState, actual: int | None = None, at_batch: int | None = None, reason: str = ""
    ) -> None:
        """Say what came of it. After "pending" another outcome follows; any other is final."""
        with self._lock:
            if self._final:
                return
            self._final = state != "pending"
            took = time.monotonic() - self._born
            self._outcome = replace(
                self._outcome, state=state, actual=actual, at_batch=at_batch, reason=reason, took=took
            )
            self._known.set()
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher(self)

    def watch(self, watcher: Callable[[Ticket], None]) -> None:
        """Call `watcher` with this ticket whenever its outcome changes, in whatever thread that is."""
        with self._lock:
            self._watchers.append(watcher)
            known = self._known.is_set()
        if known:
            watcher(self)

    def wait(self, seconds: float) -> Outcome:
        """The outcome, or how far it has got after so many seconds."""
        self._known.wait(seconds)
        return self._outcome


class Gate:
    """Whether a loader is paused, between epochs too. Inline loading waits at it; pools are told.

    Whoever only looks takes no lock: everything is in `until`. It is no `threading.Condition`: see `Latch`.
    """

    LOOK = 1.0
    """Seconds between two looks of whoever waits: a signal handler may have raised in whoever was to wake it."""

    def __init__(self) -> None:
        self.until: float | None = None
        """When it opens by itself, s of the monotonic clock, or was to; infinity: never; None: it is open."""
        self.closed = False
        self._lock = threading.Lock()
        self._changed = Latch()
        """Set at the next change."""

    def pause(self, resume_after: float | None) -> None:
        self._set(math.inf if resume_after is None else time.monotonic() + resume_after)

    def resume(self) -> None:
        self._set(None)

    def close(self) -> None:
        """Nobody waits here any more, and nobody passes."""
        self.closed = True
        self._wake()

    def status(self) -> tuple[bool, float | None]:
        """Is it shut, and in how many seconds does it open by itself?"""
        until = self.until
        if until is None or (left := until - time.monotonic()) <= 0:
            return False, None
        return True, None if left == math.inf else left

    def wait(self) -> bool:
        """Return when the gate is open; True if the time was over, and nobody opened it."""
        while not self.closed:
            changed = self._changed
            with self._lock:
                paused, left = self.status()
                if not paused:
                    lapsed, self.until = self.until is not None, None
                    return lapsed
            changed.wait(self.LOOK if left is None else min(left, self.LOOK))
        return False

    def _set(self, until: float | None) -> None:
        with self._lock:
            self.until = until
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, Latch()
        changed.set()


def check_workers(workers: object, most: int) -> int:
    """Return a number of workers that a resize may ask for, or say what is wrong with it."""
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise TypeError(f"resize expects an int, but got workers={workers!r}")
    if not 1 <= workers <= most:
        raise ValueError(f"resize expects a number from 1 to {most} (max_workers), but got workers={workers!r}")
    return workers


def check_resume_after(seconds: object) -> float | None:
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"pause expects a number of seconds, but got resume_after={seconds!r}")
    if not 0 < seconds < float("inf"):
        raise ValueError(f"pause expects a positive number of seconds, but got resume_after={seconds!r}")
    return float(seconds)


def check_profile(seconds: object, rate: object) -> tuple[float | None, float]:
    """Return for how long and how often a profile may be asked to look, or say what is wrong with it."""
    for name, value in (("seconds", seconds), ("rate", rate)):
        if (value is not None or name == "rate") and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise TypeError(f"profile expects a number, but got {name}={value!r}")
    if isinstance(seconds, int | float) and not 0 < seconds <= LONGEST_PROFILE:
        raise ValueError(f"profile expects up to {LONGEST_PROFILE} seconds, or None, but got seconds={seconds!r}")
    if not isinstance(rate, int | float) or not 1 <= rate <= HIGHEST_RATE:
        raise ValueError(f"profile expects a rate from 1 to {HIGHEST_RATE} looks a second, but got rate={rate!r}")
    return float(seconds) if isinstance(seconds, int | float) else None, float(rate)
