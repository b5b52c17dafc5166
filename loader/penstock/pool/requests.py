"""What other threads ask of the conductor."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..control import Ticket
from ..profiling.session import Sink
from .epoch import Epoch
from .window import Task


class BeginEpoch(NamedTuple):
    """Begin an epoch with so many workers; one that is under way is abandoned."""

    epoch: Epoch
    workers: int


class LeaveEpoch(NamedTuple):
    """Nobody takes from this epoch any more."""

    epoch: Epoch


class ChangeWorkers(NamedTuple):
    """Have so many workers from now on."""

    workers: int
    ticket: Ticket


class Hold(NamedTuple):
    """Let workers finish the batch that they are at and hold, for so many seconds; None: until told to go on."""

    resume_after: float | None
    ticket: Ticket | None


class GoOn(NamedTuple):
    """End a pause."""

    ticket: Ticket | None


class TakeStack(NamedTuple):
    """Call `answer`, in the conductor's thread, with the Python stack of the worker that has the task."""

    answer: Callable[[str], None]
    task: Task | None


class SampleStacks(NamedTuple):
    """Have all workers sample their stacks so often a second, those too that are yet to come; 0: no longer."""

    rate: float
    sink: Sink


class Revived(NamedTuple):
    """A crew that was lost can grow again."""


Request = BeginEpoch | LeaveEpoch | ChangeWorkers | Hold | GoOn | TakeStack | SampleStacks | Revived
