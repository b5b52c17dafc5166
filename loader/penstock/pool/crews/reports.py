"""What a crew reports to the conductor, through the pool's inbox. What is about one worker comes in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...failures import Failure

if TYPE_CHECKING:
    from ..tasks import Batch
    from .crew import Crew, Worker


class Born(NamedTuple):
    """A worker exists; it may have to get ready before it takes tasks."""

    worker: Worker


class Up(NamedTuple):
    """A worker takes tasks."""

    worker: Worker


class Arrived(NamedTuple):
    """A worker has answered tasks."""

    worker: Worker
    batches: list[Batch]


class Left(NamedTuple):
    """A worker has gone as it was told to."""

    worker: Worker
    exitcode: int
    costs: list[int]
    """The counts of its sample times."""


class Died(NamedTuple):
    """A worker has gone although nobody had told it to."""

    worker: Worker
    exitcode: int
    """As in `multiprocessing`: negative for a signal."""
    message: str
    """What happened, for a person."""
    batch: int
    """The batch that it was at; -1: none."""
    number: int
    """Of the task it was at, among all that it was given; -1: at none, or the task is not to blame."""
    blame: bool
    """It may have died of what it did; else it was lost with its crew."""
    costs: list[int]
    """The counts of its sample times."""
    sample: int = -1
    """Place in the batch of the sample that it was making; -1: not known."""


class Noticed(NamedTuple):
    """A worker has noticed something that training should be told, once."""

    worker: Worker
    message: str


class NotStarted(NamedTuple):
    """A worker could not be made."""

    worker: Worker
    reason: str


class Failed(NamedTuple):
    """The crew cannot make any worker."""

    error: Failure | BaseException


class Interrupted(NamedTuple):
    """Ctrl-C was pressed, as far as the crew has seen it."""


class PartLost(NamedTuple):
    """Some of what workers are made from is gone, and their deaths follow. The crew sees to it itself."""

    about: str
    """What it was, the same each time."""
    message: str
    """What happened, for a person."""


class RecipeWanted(NamedTuple):
    """The crew could make more workers, or any at all, if `revive` gave it the recipe again."""

    crew: Crew


class HasRoom(NamedTuple):
    """The crew can make workers that it could not make before."""

    crew: Crew


class CrewLost(NamedTuple):
    """What workers are made from is gone, and they with it: a `Died` follows for each. `revive` starts it again."""

    crew: Crew
    message: str
    """What happened, for a person."""


Report = (
    Born | Up | Arrived | Left | Died | Noticed | NotStarted | Failed | Interrupted
    | PartLost | RecipeWanted | HasRoom | CrewLost
)  # fmt: skip
