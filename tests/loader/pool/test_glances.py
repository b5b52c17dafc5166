"""When glances at workers are made: at random moments, not at those that batches choose by coming."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from penstock.pool.epoch import Epoch
from penstock.pool.glances import PUT_OFF, TIMES, Glances
from penstock.pool.observer import Observer
from penstock.pool.roster import Roster
from penstock.usage import Waits


class Seen:
    """Keeps the moments of glances."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def glanced(self, now: float, workers: int, flows: bool, waits: Sequence[Waits]) -> None:
        del workers, flows, waits
        self.at.append(now)


class Full:
    """An epoch whose window has no room, with nothing taken."""

    taken = taken_bytes = 0
    window: Any

    def __init__(self) -> None:
        self.window = self

    def has_room(self, _taken: int, _bytes: int) -> bool:
        return False


def test_a_glance_that_is_due_when_a_batch_comes_is_put_off_but_not_for_ever() -> None:
    seen, epoch = Seen(), cast("Epoch", Full())
    glances = Glances(cast("Roster", []), cast("Observer", seen))
    for put_off in range(TIMES):
        while glances.patience() > 1:
            time.sleep(PUT_OFF / 4)
        glances.look(epoch, woken=True)
        assert not seen.at, f"put off {put_off} times only"
    while glances.patience() > 1:
        time.sleep(PUT_OFF / 4)
    glances.look(epoch, woken=True)
    assert len(seen.at) == 1
    while glances.patience() > 1:
        time.sleep(0.001)
    glances.look(epoch, woken=False)
    assert len(seen.at) == 2
