"""Waits of training for one batch that last unusually long, and are told while they do. Plain objects without IO.

Whoever looks at the loader now and then, the publisher's thread, tells what training waits for. The answer is whether a
stack is wanted. When there is one it becomes an event, and another one when something has changed at a later look, and
the last one when the wait is over.

A reorder stall is long from `stack_after` on. Any other wait must besides be longer than such waits usually are, or
loading that is merely slow would be told of batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..insight.recording import Turn
from ..pool.observer import Cause
from ..protocol import Hang, Stall
from ..stack import brief, cut

USUAL = 64
"""Batches, of the last ones, that say how long waits usually are."""
UNUSUAL = 3
"""Times as long as the longest tenth of them is unusual."""
FIRST = 5.0
"""Seconds that an epoch's first batch may take, at least: workers are being started."""
AGAIN = 1.0
"""Seconds between two looks at the same wait, at first;"""
SELDOM = 10.0
"""and at the most."""


class Wait(NamedTuple):
    """`next()` is under way."""

    began: int
    """ns of the monotonic clock."""
    epoch: int
    """The epoch of the batch that is waited for."""
    batch: int
    """Its batch index."""
    cause: Cause
    """What training waits for."""
    held: int = 0
    """Finished batches that have to wait."""


class Found(NamedTuple):
    """What a look has found."""

    worker: int
    """The worker that has the batch; -1: training does, or nobody."""
    stack: str
    """The Python stack of who has the batch, as text; empty: none was to be had."""
    silence: str = ""
    """Why there is no stack."""


class HangWatch:
    """Follows the waits of one loader. One thread tells it of waits; what was found may come from another."""

    def __init__(self, long: int, usual: Sequence[Turn] = ()) -> None:
        """`long`: ns from which on a wait may be long. `usual`: what training did of late, the newest last."""
        self._long = long
        self._usual = usual
        self._wait: Wait | None = None
        self._told: Stall | None = None
        """What was told of the wait under way."""
        self._ended: Stall | None = None
        """What the pool has told of the end of a reorder stall."""
        self._look_at = 0
        self._paused = 0
        """When the loader was last seen paused."""

    # -- whoever looks now and then -------------------------------------------------------------------------

    def look(self, now: int, wait: Wait | None) -> bool:
        """Say how things are; True: find out who has the batch and what it is doing, and tell `found`."""
        self._wait = wait = self._without_pause(now, wait)
        if wait is None or not self._is_long(now, wait) or now < self._look_at:
            return False
        lasted = (now - wait.began) / 1e9
        self._look_at = now + int(min(max(AGAIN, lasted / 2), SELDOM) * 1e9)
        return True

    def lasting(self, now: int, wait: Wait | None) -> Hang | None:
        """The wait under way, if it is long."""
        wait = self._without_pause(now, wait)
        if wait is None or not self._is_long(now, wait):
            return None
        told = self._told
        worker = told.worker if told is not None and _is_of(told, wait) else -1
        return Hang(max(now - wait.began, 0) // 1000, wait.cause.name.lower(), wait.batch, worker)

    def over(self, moment: float, wait: Wait | None) -> Stall | None:
        """What is still to be told of a wait that is not the one under way; None: nothing. `moment`: Unix time."""
        told, ended = self._told, self._ended
        if told is None or (wait is not None and _is_of(told, wait)):
            return None
        self._told, self._ended, self._look_at = None, None, 0
        if ended is not None and (ended.epoch, ended.batch) == (told.epoch, told.batch):
            end = ended.at + ended.us / 1e6
            return replace(
                ended,
                at=told.at,
                us=max(int((end - told.at) * 1e6), ended.us),
                stack=told.stack or ended.stack,
                brief=told.brief or ended.brief,
                silence=told.silence,
                worker=told.worker if ended.worker < 0 else ended.worker,
                cause=told.cause,
            )
        return replace(told, us=max(int((moment - told.at) * 1e6), told.us), ongoing=False)

    # -- any thread -----------------------------------------------------------------------------------------

    def found(self, now: int, moment: float, found: Found) -> Stall | None:
        """What is to be told now; None: nothing is new, or the wait is over. How long it has lasted is news when that
        has doubled."""
        wait, told = self._wait, self._told
        if wait is None:
            return None
        stall = Stall(
            at=moment - (now - wait.began) / 1e9,
            us=max(now - wait.began, 0) // 1000,
            held_back=wait.held,
            epoch=wait.epoch,
            batch=wait.batch,
            worker=found.worker,
            stack=cut(found.stack),
            brief=cut(brief(found.stack)),
            silence=found.silence[:256],
            ongoing=True,
            cause=wait.cause.name.lower(),
        )
        if told is not None and _is_of(told, wait):
            stall = replace(stall, at=told.at)
            if _same(told, stall) and stall.us < 2 * told.us:
                return None
        self._told = stall
        return stall

    def ends(self, stall: Stall) -> bool:
        """A reorder stall has ended; False: it was not told of while it lasted, so that its end is news."""
        told = self._told
        if told is None or (told.epoch, told.batch) != (stall.epoch, stall.batch):
            return False
        self._ended = stall
        return True

    # -- inside ---------------------------------------------------------------------------------------------

    def _without_pause(self, now: int, wait: Wait | None) -> Wait | None:
        """Time in which the loader is paused does not count."""
        if wait is not None and wait.cause is Cause.PAUSED:
            self._paused = now
            return None
        if wait is not None and wait.began < self._paused:
            wait = wait._replace(began=self._paused)
        return wait

    def _is_long(self, now: int, wait: Wait) -> bool:
        lasted = now - wait.began
        if lasted < self._long:
            return False
        if wait.cause is Cause.REORDER_STALL:
            return True
        if wait.cause is Cause.STARTUP and lasted < FIRST * 1e9:
            return False
        waits = sorted(turn.inside for turn in list(self._usual)[-USUAL:])
        return lasted >= UNUSUAL * 1e9 * (waits[len(waits) * 9 // 10] if waits else 0.0)


def _is_of(told: Stall, wait: Wait) -> bool:
    return (told.epoch, told.batch) == (wait.epoch, wait.batch)


def _same(told: Stall, now: Stall) -> bool:
    return replace(told, us=now.us, held_back=now.held_back) == now
