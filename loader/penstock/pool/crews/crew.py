"""The seam between a pool and its workers: what the conductor asks of a crew and of each of its workers.

A kind of worker is a subclass of `Crew` and one of `Worker`. What happens to workers comes back as `reports`, which a
crew puts into the pool's `Inbox`; a finished batch comes as a `Payload`. A pool may have several crews, of different
kinds: a worker's id is its own in the whole pool, and tasks go to whoever is free.

Everything is called from the conductor's thread and must not wait, unless a method says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ...protocol import WorkerState
from ...seeding import Bases
from ...usage import Used, Waits

if TYPE_CHECKING:
    from ...profiling.session import Sink
    from ..tasks import Recipe
    from ..window import Task


class Order(IntEnum):
    """What a worker is told to do. It looks between two batches."""

    RUN = 0
    HOLD = 1
    """Finish the batch under way and start no other."""
    LEAVE = 2
    """Finish the batch under way and go."""


class Progress(NamedTuple):
    """How far a worker is. Times are sums in ns since it was born, the state under way included."""

    state: WorkerState
    """What it is doing."""
    since: int
    """When the state began, ns of the monotonic clock; 0: not known."""
    batch: int
    """Batch under way or done last; -1: none yet."""
    batches: int
    """Batches that it made, failed ones included."""
    samples: int
    """Samples in the batches that it made."""
    nbytes: int
    """Bytes of tensors and arrays in them."""
    fetch: int
    """ns in which it got samples."""
    collate: int
    """ns in which it made batches of them."""
    send: int
    """ns in which it put batches where training finds them."""
    idle: int
    """ns in which it had nothing to do."""


class Memory(NamedTuple):
    """Memory in which batches travel, all of it the crew's own."""

    used: int = 0
    """Slots that carry a batch, or one that training still looks at."""
    free: int = 0
    """Slots that wait for a batch."""
    nbytes: int = 0
    """Bytes in all of them."""


class Machine(NamedTuple):
    """Another machine on which workers of a crew run, or should."""

    host: str
    address: str
    """Of its agent."""
    workers: list[int]
    """Ids of those that run there."""
    processors: int
    """Processors that its agent may use; 0: it cannot be reached now."""
    received: int
    """Bytes that came from there so far."""
    full: int
    """Time so far in which batches waited there because the network took no more, ns."""
    way: int
    """Time that batches take from there to here, lately and on average, ns."""
    lost: int
    """Tasks that were lost with it so far."""


class Worker(ABC):
    """One worker. The fields are the pool's own account of it; the methods are its kind's."""

    def __init__(self, key: int, number: int) -> None:
        self.key = key
        """Never used twice in a pool, unlike the id: what a dead worker still sends cannot be taken for another's."""
        self.id = number
        self.host = ""
        """The machine that it runs on; empty: this one."""
        self.pid = 0
        """Of the process that it is, or lives in; 0: it does not exist yet."""
        self.born = False
        """It was reported that it exists."""
        self.up = False
        """It takes tasks."""
        self.leaving = False
        """It was told to leave."""
        self.closed = False
        """It says nothing more; its end is still to be reported."""
        self.outstanding = 0
        """Tasks given to it and not answered."""
        self.dispatched = 0
        """Tasks given to it so far."""
        self.void = 0
        """So many of its next answers are to tasks that nobody wants done any more. It answers in turn."""
        self.recalled = 0
        """Tasks before this one that it had not started were taken back."""

    def waiting(self) -> int:
        """Tasks in its index queue, without those that were taken back. Any thread may ask."""
        return max(self.dispatched - max(self.started(), self.recalled), 0)

    def unread(self) -> int:
        """Batches that it has finished, that take memory of its own, and that training has not taken. Asked often.

        Where training has taken all of them it is one at the most.
        """
        return 0

    def restock(self) -> None:  # noqa: B027
        """Give memory back to it that training has done with, if it has none for its next batch.

        Called after every hand-out if it has a task.
        """

    @abstractmethod
    def give(self, epoch: int, tasks: list[Task]) -> None:
        """Put tasks into its index queue. Called with every hand-out: a few tasks at a time, many times a second."""

    @abstractmethod
    def adopt(self, epoch: int, shard: int, state: Any) -> None:
        """From now on read this shard, from `state` on. Called before the first task of a shard that is new to it."""

    @abstractmethod
    def steer(self, order: Order) -> None:
        """Obey this from the next batch on. Called when a pause begins or ends, and once to have it leave."""

    @abstractmethod
    def recall(self) -> None:
        """Skip what it has been given and has not started. Called when it leaves, or is slow while others are idle."""

    @abstractmethod
    def started(self) -> int:
        """How many tasks it has taken up, skipped ones included. Any thread may ask, often."""

    @abstractmethod
    def busy_for(self) -> int:
        """For how long it has been at its batch, or at a step of it, ns; 0: it is at none. Asked often."""

    @abstractmethod
    def progress(self, now: int) -> Progress:
        """How far it is at this moment, ns of the monotonic clock. Any thread may ask, a few times a second."""

    def sample(self) -> tuple[int, int]:
        """Place in its batch of the sample that it makes, and since when, ns; place -1: at none, or it does not tell.

        Asked a few times a second if a sample may not take for ever.
        """
        return -1, 0

    def kill(self) -> bool:
        """End it in the midst of a sample; False if that is not possible. Its death is reported."""
        return False

    @abstractmethod
    def used(self) -> Used:
        """Memory and processor time, as the system tells them now. Any thread may ask, once a second."""

    def waits_for(self) -> Waits | None:
        """What it waits for at this moment in the midst of a batch; None: it is at none, or that is not known.

        Asked several times a second.
        """
        return None

    @abstractmethod
    def costs(self) -> list[int]:
        """The counts of its sample times since it was born; see `penstock.costs`. Any thread may ask, now and then."""

    @abstractmethod
    def profile(self, rate: float, sink: Sink) -> None:
        """From the next batch on look so many times a second at which line it is, and tell `sink`; 0: no longer.

        Called when a profile begins or ends, and when a worker comes up meanwhile.
        """

    @abstractmethod
    def stack(self, patience: float) -> str:
        """Its Python stack, innermost call first; empty if it does not answer within so many seconds. May wait."""

    def why_silent(self) -> str:
        """Why it does not tell its stack, in a few words. Called when it did not."""
        return "it did not answer"


class Crew(ABC):
    """Workers of one kind, and what they are made from."""

    name: str
    """What is said to have been lost when the whole crew is."""

    @abstractmethod
    def revive(self, recipe: Recipe) -> object:
        """Start what workers are made from: at first, and after a `CrewLost`. May wait.

        Called by the iterating thread, which alone may fork or pickle. The crew must not lead to the recipe, but what
        it returns may: only the pool refers to that.
        """

    @abstractmethod
    def grow(self, key: int, number: int, num_workers: int, epoch: int, order: Order) -> Worker | None:
        """Begin to make a worker, one of `num_workers` as far as its dataset is told; None: that is not possible now.

        `Born` or `NotStarted` follows, then `Up`. Called when there are fewer workers than there should be.
        """

    @abstractmethod
    def begin_epoch(self, number: int, shared_seed: int | None) -> None:
        """Tasks of earlier epochs are to be skipped from now on. `shared_seed` is for DataPipes.

        Tasks of the next epoch may come before this is called for it, unless the dataset is iterable-style.
        """

    def bases(self) -> Bases | None:
        """What the seeds of batches are made from, as its first worker has found it out; None: it has not, or is none
        of its own. Asked when that worker is up.
        """
        return None

    def share_bases(self, bases: Bases) -> None:  # noqa: B027
        """The first worker of the pool, perhaps another crew's, has found these out: they are those of all workers."""

    @abstractmethod
    def limit(self, nbytes: int) -> None:
        """Memory in which batches travel, but for what training looks at, may be kept up to so many bytes.

        Called before every hand-out.
        """

    @abstractmethod
    def memory(self) -> Memory:
        """The memory in which batches travel. Any thread may ask, a few times a second."""

    def machines(self) -> list[Machine]:
        """The other machines that it has workers on, or should. Any thread may ask, a few times a second."""
        return []

    @abstractmethod
    def handles(self) -> list[Any]:
        """What those get who look for torch's worker processes; after the end, those that there were. Any thread."""

    @abstractmethod
    def see_off(self) -> None:
        """Have all workers leave; from now on nothing but `Interrupted` is reported. Called once, at the end."""

    @abstractmethod
    def lingers(self) -> bool:
        """Is there still somebody to wait for? Asked after `see_off`, whenever something has happened."""

    @abstractmethod
    def end(self) -> None:
        """End what is left of workers, and of what they are made from, and wait for it. May be called again."""
