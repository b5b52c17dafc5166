"""What travels between training and an agent's session, in frames; see `wire`.

A worker is named by its key. Everything about one worker is in order, because there is one connection: its end cannot
overtake its batches. Moments are those of the sender's clock, unless it is said otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..failures import Failure
from ..profiling.sampler import Chunk
from ..usage import Used, Waits
from .luggage import Origin

# -- from training ----------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """First of all: what workers are made from. The contents of arrays come with it."""

    pickled: bytes
    origin: Origin
    base_seed: int
    rows: int
    """Ids of workers are below it."""
    max_retries: int


class Grow(NamedTuple):
    """Make a worker; as in `Crew.grow`."""

    key: int
    number: int
    num_workers: int
    epoch: int
    order: int


class Give(NamedTuple):
    """Tasks for a worker."""

    key: int
    parcels: list[tuple[int, int, int, Any, int]]
    limit: int
    """As in `Crew.limit`."""


class AdoptShard(NamedTuple):
    """From now on a worker is to read this shard, from `state` on."""

    key: int
    epoch: int
    shard: int
    state: Any


class Steer(NamedTuple):
    """What a worker is to do from the next batch on: an `Order`."""

    key: int
    order: int


class Recall(NamedTuple):
    """Skip what it has been given, up to this number, and has not started."""

    key: int
    dispatched: int


class End(NamedTuple):
    """End a worker in the midst of a sample."""

    key: int


class LookAt(NamedTuple):
    """Tell a worker's stack."""

    key: int
    question: int
    patience: float


class Profile(NamedTuple):
    """Sample a worker's stacks; rate 0: no longer."""

    key: int
    order: int
    rate: float


class StartEpoch(NamedTuple):
    """Tasks of other epochs are to be skipped; as in `Crew.begin_epoch`."""

    number: int
    shared_seed: int | None


class ShareBases(NamedTuple):
    """The bases of seeds, from whichever machine has the first worker. To and from the agent."""

    bases: tuple[int, ...]


class Ping(NamedTuple):
    """Is anybody there? `moment` comes back with the answer."""

    moment: int


class SeeOff(NamedTuple):
    """Have all workers leave, and end."""


# -- from the agent ---------------------------------------------------------------------------------------------


class Born(NamedTuple):
    """A worker's process exists."""

    key: int
    pid: int


class Up(NamedTuple):
    """A worker takes tasks."""

    key: int


class Arrived(NamedTuple):
    """A worker has answered tasks. The contents of large batches come with it."""

    key: int
    row: bytes
    """The worker's row at this moment, from its state on."""
    batches: list[tuple[Any, ...]]
    """The fields of `Batch`, with those of an `Encoded` in place of the payload; as its slot, the place among the
    contents that come with it, or -1."""


class Left(NamedTuple):
    """A worker has gone as it was told to."""

    key: int
    exitcode: int
    costs: list[int]


class Died(NamedTuple):
    """As `reports.Died`."""

    key: int
    exitcode: int
    message: str
    batch: int
    number: int
    blame: bool
    costs: list[int]
    sample: int


class NotStarted(NamedTuple):
    """A worker could not be made."""

    key: int
    reason: str


class Failed(NamedTuple):
    """No worker can be made."""

    failure: Failure


class ZygoteLost(NamedTuple):
    """The zygote has died, and was started again. The deaths of its workers follow."""

    message: str


class Rows(NamedTuple):
    """How far workers are: key and row of each."""

    rows: list[tuple[int, bytes]]


class Beat(NamedTuple):
    """Told a few times a second."""

    waits: list[tuple[int, Waits]]
    """What workers wait for at this moment."""
    used: list[tuple[int, Used]]
    """What the system says of workers; less often."""
    full: int
    """Time so far in which something waited because the network took no more, ns."""


class StackIs(NamedTuple):
    """Answers a `LookAt`."""

    question: int
    stack: str
    silence: str
    """Why there is none."""


class Sampled(NamedTuple):
    """Where a worker was seen, as an order to sample asked."""

    key: int
    order: int
    chunk: Chunk


class Pong(NamedTuple):
    """Answers a `Ping`: its moment, and the agent's own."""

    asked: int
    moment: int


Message = (
    Begin | Grow | Give | AdoptShard | Steer | Recall | End | LookAt | Profile | StartEpoch | ShareBases | Ping | SeeOff
    | Born | Up | Arrived | Left | Died | NotStarted | Failed | ZygoteLost | Rows | Beat | StackIs | Sampled | Pong
)  # fmt: skip

_KINDS: tuple[Any, ...] = Message.__args__
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def pack(message: Message) -> tuple[Any, ...]:
    """The message as it is pickled: plain tuples pickle several times faster than types by name."""
    return (_NUMBERS[type(message)], *message)


def unpack(packed: tuple[Any, ...]) -> Message:
    message: Message = _KINDS[packed[0]]._make(packed[1:])
    return message
