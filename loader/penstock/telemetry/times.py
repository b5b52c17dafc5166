"""Where the training thread's time goes. A plain object: every method is told what time it is.

The iterating thread says when it enters `next()`, when it waits there, and when it returns. While it waits, the
conductor says what for, whenever that changes. A change is one append to a deque, folded in by whoever reads, so
neither thread ever waits for the other. A reader takes everything else in one line without a call in it, and so do
writers change it: the interpreter lock does not change hands there.
"""

from __future__ import annotations

from collections import deque

from ..pool.observer import Cause
from ..protocol import Times


class TimeAccount:
    """The training thread's time by kind."""

    def __init__(self) -> None:
        self._sums = [0] * len(Cause)
        self._last: int | None = None
        self._cause = Cause.COMPUTE
        self._waiting = False
        self._changes: deque[tuple[int, Cause]] = deque()
        """Of the wait under way, or of the last one."""
        self._suspended: tuple[int, TimeAccount] | None = None
        """Since when the clock stands still, and because of which other account."""
        self.held: TimeAccount | None = None
        """The account whose clock stands still because of this one; see `nesting`."""

    def copy(self, now: int) -> TimeAccount:
        """The account as it is now; it does not change with this one."""
        other = TimeAccount()
        other._sums = self._totals(now)
        return other

    def since(self, earlier: TimeAccount, now: int) -> Times:
        """What has been added since the copy was made."""
        sums = [total - before for total, before in zip(self._totals(now), earlier._sums, strict=True)]
        return _as_times(sums)

    def enter(self, now: int) -> int:
        """`next()` is called. The first call starts the clock; the time before a later one was training's own.

        Returns that time, ns; 0 at the first call.
        """
        own = 0
        if self._last is not None:
            passed = now - self._last
            self._sums[self._cause] += passed
            own = passed if self._cause is Cause.COMPUTE else 0
        self._last = now
        self._cause = Cause.STARVATION  # what `next()` does itself keeps training from its work, too
        return own

    def wait(self, now: int, cause: Cause) -> None:
        """Nothing is ready: from now on the time belongs to `cause`."""
        if self._changes:
            self._changes = deque()
        self._book(now)
        self._cause = cause
        self._waiting = True

    def change(self, now: int, cause: Cause) -> None:
        """The wait goes on for another reason. Called by the conductor."""
        self._changes.append((now, cause))

    def leave(self, now: int) -> None:
        """The wait is over. What the conductor says from now on comes too late."""
        if self._changes and self._waiting:
            sums = self._totals(now)
            self._sums = sums
            if self._last is not None:
                self._last = now
        else:
            self._book(now)
        self._waiting = False
        self._cause = Cause.STARVATION

    def spend(self, start: int, end: int, cause: Cause) -> None:
        """The time between two moments, both past, was for `cause`, within `next()` or before its first call."""
        self._book(start)
        self._sums[cause] += end - start
        if self._last is not None:
            self._last = end

    def exit(self, now: int) -> None:
        """`next()` returns. If it waits, that is over."""
        if self._waiting and self._changes:
            self.leave(now)
        self._waiting = False
        self._book(now)
        self._cause = Cause.COMPUTE

    def stop(self, now: int) -> None:
        """The epoch is over: the clock stands still until the next `enter`."""
        self._book(now)
        self._last = None
        self._cause = Cause.COMPUTE
        self._suspended = None

    def suspend(self, now: int, other: TimeAccount) -> bool:
        """Another loader is asked meanwhile. Returns whether the clock ran, and stands still from now on."""
        if self._last is None or self._cause is not Cause.COMPUTE:
            return False
        self._book(now)
        self._suspended, self._last = (now, other), None
        return True

    def resume_after(self, other: TimeAccount, now: int) -> None:
        """The other loader's epoch is over: the time goes on as training's own."""
        if self._suspended is not None and self._suspended[1] is other:
            self._suspended, self._last = None, now

    def resume_beside(self, now: int) -> None:
        """It is asked again and the other one is not over: they take turns, and the time counts as training's own."""
        if self._suspended is not None:
            since, _ = self._suspended
            self._suspended, self._last = None, now
            self._sums[Cause.COMPUTE] += now - since

    def waiting(self) -> tuple[Cause | None, bool]:
        """Why `next()`, which is under way, has not returned, None if it is not; and whether it waits for others."""
        last, cause, changes, waits = self._last, self._cause, self._changes, self._waiting
        if last is None or cause is Cause.COMPUTE:
            return None, False
        if waits and changes:
            cause = changes[-1][1]
        return cause, waits

    def times(self, now: int) -> Times:
        """The sums up to now, the moment under way included."""
        return _as_times(self._totals(now))

    def _book(self, now: int) -> None:
        """The time since the last call was all for the cause under way."""
        if self._last is not None:
            self._sums[self._cause] += now - self._last
            self._last = now

    def _totals(self, now: int) -> list[int]:
        sums, last, cause, changes = self._sums[:], self._last, self._cause, self._changes if self._waiting else ()
        if last is None:
            return sums
        now = max(now, last)  # it may have been looked up before
        for moment, following in list(changes):
            moment = min(max(moment, last), now)  # noqa: PLW2901
            sums[cause] += moment - last
            last, cause = moment, following
        sums[cause] += now - last
        return sums


def _as_times(sums: list[int]) -> Times:
    return Times(*(max(total, 0) // 1000 for total in sums))
