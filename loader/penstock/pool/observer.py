"""What a pool tells of itself. Telemetry implements it; the pool knows no more of telemetry than this.

All methods but those of `Clock` and `PinTally` are called by the conductor's thread, and must not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..protocol import PinMode
from ..usage import Waits

if TYPE_CHECKING:
    from .tasks import Batch

Costs = Mapping[int, list[int]]
"""Id of each worker → the counts of its sample times so far."""


class Cause(IntEnum):
    """Where training's time goes. Every moment has exactly one."""

    COMPUTE = 0
    STARVATION = 1
    REORDER_STALL = 2
    PIN_WAIT = 3
    PAUSED = 4
    STARTUP = 5
    SAMPLER = 6


class Clock(Protocol):
    """Training's time account. Moments are ns of the monotonic clock."""

    def wait(self, now: int, cause: Cause) -> None:
        """The iterating thread has nothing to give: from now on the time belongs to `cause`."""

    def change(self, now: int, cause: Cause) -> None:
        """The conductor's thread: the wait goes on for another reason."""

    def leave(self, now: int) -> None:
        """The iterating thread has a batch."""


class PinTally(Protocol):
    """Told of what passes the pin stage, by its thread."""

    mode: PinMode

    def add(self, nbytes: int, nanoseconds: int) -> None:
        """A batch has passed."""


class Stalled(NamedTuple):
    """Training waits for one batch while later ones are finished."""

    epoch: int
    """The epoch that is under way."""
    batch: int
    """The batch that is waited for."""
    worker: int
    """Id of the worker that has it; -1: none."""
    held: int
    """Finished batches that have to wait."""
    task: tuple[int, int]
    """Its shard, and its number there; (-1, batch) without shards."""


class Observer(Protocol):
    """What happens in a pool."""

    @property
    def pin(self) -> PinTally:
        """Told of what passes the pin stage."""

    def epoch_began(self, costs: Costs) -> None:
        """An epoch begins, with these workers."""

    def epoch_ended(self, costs: Costs) -> None:
        """The epoch is over, or was left."""

    def batch_arrived(self, worker: int, batch: Batch, indices: Any, counted: bool = False) -> None:
        """A worker's batch was accepted; `indices` are None for a shard. Called for every batch of an epoch.

        `counted`: it was made before the epoch began, and `batch_made` was called then.
        """

    def batch_made(self, worker: int, batch: Batch) -> None:
        """A worker has made a batch of an epoch that is foreseen, and may never begin."""

    def worker_born(self, worker: int, pid: int) -> None:
        """A worker exists."""

    def worker_left(self, worker: int, pid: int, exitcode: int) -> None:
        """A worker has left as it was told to."""

    def worker_died(self, worker: int, pid: int, exitcode: int, batch: int, retried: bool) -> None:
        """A worker has died, at that batch (-1: at none); `retried`: others do what it had to do."""

    def worker_gone(self, worker: int, costs: list[int]) -> None:
        """A worker's id will be used again; these were its counts."""

    def recovered(self) -> None:
        """What a dead worker had to do was given to others."""

    def warn(self, about: str, message: str) -> None:
        """Training should be told; of each thing only the first time."""

    def resumed(self, workers: int, batch: int) -> None:
        """A pause has ended because its time was over."""

    def glanced(self, now: float, workers: int, flows: bool, waits: Sequence[Waits]) -> None:
        """A glance, s of the monotonic clock, at what some of so many workers wait for; see `glances`.

        `flows`: there are tasks for all of them, or no room for more.
        """

    def stalled(self, now: int, stall: Stalled | None) -> None:
        """How things are now, after every step of the conductor: None, training does not wait behind one batch."""

    def wants_stack(self, now: int) -> bool:
        """Has the stall lasted so long that the stack of the worker that has the batch should be taken?"""

    def stack_taken(self, stack: str) -> None:
        """This is the stack; empty if the worker did not answer."""

    def next_look(self, now: int) -> int | None:
        """In how many ns the stack will be wanted; None: not, as things are."""
