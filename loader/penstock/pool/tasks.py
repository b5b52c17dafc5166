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
    iterable: bool
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    batch_size: int | None
    worker_init_fn: Callable[[int], None] | None
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
    batch: int
    shard: int
    payload: Payload | None
    """None: the shard has ended, or there is a failure."""
    failure: Failure | None
    samples: int
    start: int
    """Moments in ns of the monotonic clock."""
    fetched: int
    collated: int
    sent: int
    slowest: int
    """Position in the batch of the slowest sample; -1: not known."""
    slowest_ns: int
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
