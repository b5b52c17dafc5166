"""What other threads ask of the conductor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ..control import Ticket
from ..profiling.session import Sink
from .epoch import Epoch
from .looks import Seen
from .window import Task


class BeginEpoch(NamedTuple):
    """Begin an epoch with so many workers; one that is under way is abandoned."""

    epoch: Epoch
    workers: int


class Foresee(NamedTuple):
    """Have batches of this epoch made, which will probably be begun next, when there is nothing else to do."""

    epoch: Epoch


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


class LookAt(NamedTuple):
    """Look at what workers are doing, and call `answer` with it in the conductor's thread."""

    answer: Callable[[list[Seen]], None]
    workers: Collection[int] | None
    """Their ids; None: the one for whose batch training waits, if somebody has it."""


class SampleStacks(NamedTuple):
    """Have all workers sample their stacks so often a second, those too that are yet to come; 0: no longer."""

    rate: float
    sink: Sink


class Revived(NamedTuple):
    """A crew that was lost can grow again."""


Request = BeginEpoch | Foresee | LeaveEpoch | ChangeWorkers | Hold | GoOn | TakeStack | LookAt | SampleStacks | Revived
