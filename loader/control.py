"""What comes of a pause, resume or resize."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from .protocol import Action, CommandState


@dataclass(frozen=True, slots=True)
class Outcome:
    action: Action
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

    def __init__(self, action: Action, asked: int | None = None, before: int | None = None) -> None:
        self._outcome = Outcome(action, "accepted", asked, before)
        self._born = time.monotonic()
        self._known = threading.Event()
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
    """Whether a loader is paused, between epochs too. Inline loading waits at it; pools are told."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._paused = False
        self._resume_at: float | None = None
        self.closed = False

    def pause(self, resume_after: float | None) -> None:
        with self._condition:
            self._paused = True
            self._resume_at = None if resume_after is None else time.monotonic() + resume_after
            self._condition.notify_all()

    def resume(self) -> None:
        with self._condition:
            self._paused = False
            self._resume_at = None
            self._condition.notify_all()

    def close(self) -> None:
        """Nobody waits here any more, and nobody passes."""
        with self._condition:
            self.closed = True
            self._condition.notify_all()

    def status(self) -> tuple[bool, float | None]:
        """Is it shut, and in how many seconds does it open by itself?"""
        with self._condition:
            return self._status()

    def wait(self) -> None:
        """Return when the gate is open."""
        with self._condition:
            while not self.closed:
                paused, left = self._status()
                if not paused:
                    return
                self._condition.wait(left)

    def _status(self) -> tuple[bool, float | None]:
        if not self._paused or self._resume_at is None:
            return self._paused, None
        left = self._resume_at - time.monotonic()
        if left <= 0:
            self._paused, self._resume_at = False, None
            return False, None
        return True, left


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
