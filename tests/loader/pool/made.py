"""Batches as workers answer with them, made by no worker."""

from __future__ import annotations

from typing import Any

from penstock.pool.crews.payload import Opened
from penstock.pool.tasks import Batch
from penstock.pool.window import Finished


def made(
    batch: int, value: object = None, nbytes: int = 0, *, shard: int = -1, state: Any = None, epoch: int = 0
) -> Batch:
    """A finished batch with `value` in it."""
    return Batch(epoch, batch, shard, Opened(value, nbytes), None, 1, 0, 0, 0, 0, -1, 0, None, state)


def ended(batch: int, shard: int, epoch: int = 0, state: Any = None) -> Batch:
    """The end of a shard that was asked for that batch."""
    return Batch(epoch, batch, shard, None, None, 0, 0, 0, 0, 0, -1, 0, None, state)


def opened(finished: Finished) -> Any:
    """What training gets."""
    assert finished.batch is not None
    assert finished.batch.payload is not None
    return finished.batch.payload.open(0)
