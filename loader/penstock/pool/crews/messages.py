"""What travels between conductor, zygote and worker processes.

A message is packed as a plain tuple with its kind's number in front: pickling a type by name costs more than all the
rest of a small one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...failures import Failure
from ...profiling.sampler import Chunk


class Birth(NamedTuple):
    """What a new worker is told."""

    worker: int
    """Its id."""
    base_seed: int
    """The base seed; the worker's own is that plus its id."""
    num_workers: int
    """As `get_worker_info().num_workers` will say; for iterable-style datasets the number of shards."""


class Begin(NamedTuple):
    """To the zygote, first of all, with the descriptors of the board and of the stack pipe."""


class Fork(NamedTuple):
    """To the zygote: make a worker; the descriptor of its channel comes with it."""

    key: int
    """Its number among all workers of the pool, ever."""
    birth: Birth
    """What it is told first."""


class Kill(NamedTuple):
    """To the zygote: send a worker a signal."""

    key: int
    signal: int


class Ready(NamedTuple):
    """From the zygote: it has opened the recipe."""

    pid: int


class NotReady(NamedTuple):
    """From the zygote: the recipe cannot be opened."""

    failure: Failure


class Forked(NamedTuple):
    """From the zygote: a worker's process exists."""

    key: int
    pid: int


class NotForked(NamedTuple):
    """From the zygote: a worker's process could not be made."""

    key: int
    reason: str


class Exited(NamedTuple):
    """From the zygote: a worker's process has ended."""

    key: int
    pid: int
    exitcode: int


class CtrlC(NamedTuple):
    """From the zygote: Ctrl-C was pressed."""


class Hello(NamedTuple):
    """From a worker: it takes tasks."""


class Batches(NamedTuple):
    """From a worker: what it has made. Descriptors of new slots come with it."""

    announced: list[tuple[int, int]]
    """(number, size) of each new slot."""
    dropped: list[int]
    """Numbers of slots that are no more."""
    batches: list[tuple[Any, ...]]
    """The fields of `Batch`, with an `Encoded`, as a tuple, in place of the payload."""


class Goodbye(NamedTuple):
    """From a worker: it leaves, as it was told to."""


class Sampled(NamedTuple):
    """From a worker: where it was seen."""

    order: int
    """The number of the order to sample that this follows."""
    chunk: Chunk


class Tasks(NamedTuple):
    """To a worker: what to do."""

    tasks: list[tuple[int, int, int, Any, int]]
    """Epoch, batch, shard, indices, and the number among all tasks that it was given."""
    returned: list[int]
    """Numbers of slots that it may use again."""
    spoiled: list[int]
    """Numbers of slots that it must not use again."""
    trim: bool
    """Free slots take too much memory."""


class Adopt(NamedTuple):
    """To a worker: read this shard from now on."""

    epoch: int
    """The epoch that the shard is of."""
    shard: int
    """Its number."""
    state: Any
    """Where to go on in it, as the dataset saved it; None: at its beginning."""


class SharedSeed(NamedTuple):
    """To a worker, for DataPipes: the seed that all workers of all ranks share in an epoch."""

    epoch: int
    seed: int


class Look(NamedTuple):
    """To a worker: look at the board."""


Message = (
    Begin | Fork | Kill | Ready | NotReady | Forked | NotForked | Exited | CtrlC
    | Hello | Batches | Goodbye | Sampled | Tasks | Adopt | SharedSeed | Look
)  # fmt: skip

_KINDS: tuple[Any, ...] = Message.__args__
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def pack(message: Message) -> tuple[Any, ...]:
    """The message as it is pickled."""
    return (_NUMBERS[type(message)], *message)


def unpack(packed: tuple[Any, ...]) -> Message:
    message: Message = _KINDS[packed[0]]._make(packed[1:])
    return message
