"""From a finished task to the batch that training gets."""

from __future__ import annotations

from typing import Any

from ..failures import Failure
from .codec import decode
from .roster import WorkerHandle
from .tasks import Batch
from .window import Finished

HELD_AT_LEAST = 4
"""So many batches training may hold without their being copied, whatever their size."""


class Decoded:
    """A batch that a stage before training has unpacked already, or the failure to do so."""

    __slots__ = ("batch", "failure", "value")

    def __init__(self, value: Any, batch: Batch, failure: Failure | None = None) -> None:
        self.value = value
        self.batch = batch
        self.failure = failure


def failure_of(finished: Finished) -> Failure | BaseException | None:
    """What went wrong with the batch."""
    result = finished.result
    if isinstance(result, BaseException):
        return result
    if isinstance(result, Decoded):
        return result.failure
    failure: Failure | None = result[0].failure
    return failure


def unpack(finished: Finished, hold_bytes: int) -> Any:
    """Return a batch with which nothing went wrong. May be called again after an interruption.

    Tensors are views of the slot as long as training holds few of them. When the slots it holds exceed `hold_bytes`,
    this batch is copied out and its slot goes back at once, so that `list(loader)` does not pin shared memory.
    """
    result = finished.result
    if isinstance(result, Decoded):
        return result.value
    batch, worker = result
    structure, buffers, inline, slot, nbytes = batch.encoded
    if slot < 0:
        return decode(structure, buffers, bytearray(inline))
    lease = finished.lease
    if lease is None:
        lease = worker.slots.lease(slot, finished)
    held = worker.slots.held()
    if held > HELD_AT_LEAST and held * nbytes > hold_bytes:
        return decode(structure, buffers, _copied(lease, buffers))
    return decode(structure, buffers, lease)


def dispose(finished: Finished) -> None:
    """Give the slot of a batch back that nobody will look at."""
    if isinstance(finished.result, tuple) and finished.lease is None:
        batch, worker = finished.take_result()
        give_back(worker, batch)


def give_back(worker: WorkerHandle, batch: Batch) -> None:
    if batch.encoded is not None and batch.encoded.slot >= 0:
        worker.slots.give_back(batch.encoded.slot)


def facts(finished: Finished) -> Batch | None:
    """What the worker said about the batch, if it got that far."""
    result = finished.result
    if isinstance(result, Decoded):
        return result.batch
    return result[0] if isinstance(result, tuple) else None


def worker_of(finished: Finished) -> WorkerHandle | None:
    return finished.result[1] if isinstance(finished.result, tuple) else None


def _copied(lease: Any, buffers: list[tuple[int, int]]) -> bytearray:
    end = max(offset + length for offset, length in buffers)
    return bytearray(memoryview(lease).cast("B")[:end])
