"""What workers are given, and what they answer with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..failures import Failure
from ..tolerating import Tolerance
from .crews.payload import Payload


@dataclass(slots=True)
class Recipe:
    """How batches are made: the same for all workers of a pool."""

    dataset: Any
    """The dataset as training had it when the pool was made, or was refreshed."""
    iterable: bool
    """The dataset is iterable-style."""
    auto_collation: bool
    """Samples are put together to batches; else each sample is a batch."""
    collate_fn: Callable[[Any], Any]
    """Makes a batch of a list of samples, or converts one sample."""
    drop_last: bool
    """Of iterable-style datasets: a last batch that is too small is left out."""
    batch_size: int | None
    """Of iterable-style datasets: samples in a batch; None: no batches."""
    worker_init_fn: Callable[[int], None] | None
    """Called in each worker, with its number, before it takes tasks."""
    record_samples: int = 0
    """How many of the slowest samples of an epoch are wanted by index."""
    movable: bool = False
    """The iterable-style dataset or its iterator may be able to save its position."""
    stateful: bool = False
    """The dataset says that it is."""
    persistent: bool = False
    """Workers, and what their datasets remember, live on after an epoch."""
    shared_seed: int | None = None
    """For DataPipes: the seed that all workers of all ranks share in their first epoch."""
    tolerance: Tolerance | None = None
    """What to do about bad samples; None: they are errors."""


class Batch(NamedTuple):
    """A finished batch, or the failure to make one, on its way from a worker."""

    epoch: int
    """The number of the epoch that its task was given in."""
    batch: int
    """Its batch index in the epoch; with shards, in the shard."""
    shard: int
    """The shard that it was read from; -1: there are none."""
    payload: Payload | None
    """None: the shard has ended, or there is a failure."""
    failure: Failure | None
    """What went wrong; None: nothing."""
    samples: int
    """Samples in it."""
    start: int
    """When its worker began with it, ns of the monotonic clock."""
    fetched: int
    """When all its samples were there, ns of the monotonic clock."""
    collated: int
    """When it was a batch, ns of the monotonic clock."""
    sent: int
    """When it was where training finds it, ns of the monotonic clock."""
    slowest: int
    """Position in the batch of the slowest sample; -1: not known."""
    slowest_ns: int
    """What the slowest sample took, ns."""
    slow: Any = None
    """(position, ns, moment at which it was there) of the slowest samples, if they are recorded."""
    state: Any = None
    """A shard's position after this batch, if its dataset can save it."""
    bad: Any = None
    """What was bad in it, as `Bad`s, if it was made all the same."""
    processor: int = -1
    """Processor time that it took, ns; -1: not measured (see `effort`)."""
    queued: int = -1
    """Time for which its worker waited for a processor, ns; -1: not known."""

    def is_end(self) -> bool:
        """Is it the end of a shard instead?"""
        return self.payload is None and self.failure is None

    def discard(self) -> None:
        """Nobody wants it: give its memory back."""
        if self.payload is not None:
            self.payload.discard()
