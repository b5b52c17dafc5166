"""What workers send: finished batches on their way through the window to the data queue. The conductor's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..telemetry.observer import Observer
from .codec import Encoded
from .delivery import give_back
from .dispatch import Dispatcher
from .epoch import Epoch
from .roster import WorkerHandle
from .sharding import ShardedWindow
from .tasks import Batch
from .window import Finished, Window


class Arrivals:
    def __init__(
        self,
        dispatcher: Dispatcher,
        observer: Observer,
        pin: Callable[[Epoch, list[Finished]], None] | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._observer = observer
        self._pin = pin

    def receive(
        self,
        epoch: Epoch | None,
        worker: WorkerHandle,
        announced: list[tuple[int, int]],
        dropped: list[int],
        batches: list[tuple[Any, ...]],
    ) -> None:
        """A worker's message: slots that are new, slots that are gone, batches."""
        for number, size in announced:
            worker.slots.add(number, size, worker.channel.descriptors.popleft())
        for number in dropped:
            worker.slots.drop(number)
        for fields in batches:
            worker.outstanding -= 1
            encoded = fields[3] and Encoded(*fields[3])
            batch = Batch._make((*fields[:3], encoded, *fields[4:]))
            if encoded is not None and encoded.slot >= 0:
                worker.slots.fill()
            ready = None
            if epoch is not None and batch.epoch == epoch.number:
                ready = _finish(epoch.window, worker, batch)
            if epoch is None or ready is None:
                give_back(worker, batch)
                continue
            if encoded is not None or batch.failure is not None:  # else it is the end of a shard
                epoch.finished += 1
                self._dispatcher.learn(batch.sent - batch.start)
                self._observer.batch_arrived(batch, epoch.window.last_indices)
                self._observer.add_span(worker.id, batch)
            self.deliver(epoch, ready)

    def deliver(self, epoch: Epoch, ready: list[Finished]) -> None:
        """Hand on what the window lets go."""
        if ready and self._pin is not None:
            epoch.pin_entered += len(ready)
            self._pin(epoch, ready)
        elif ready:
            epoch.ready.extend(ready)
            epoch.signal.set()
        if isinstance(epoch.window, ShardedWindow) and epoch.window.all_ended():
            epoch.ended = True
            epoch.signal.set()


def _finish(window: Window | ShardedWindow, worker: WorkerHandle, batch: Batch) -> list[Finished] | None:
    """Tell the window; returns what can be delivered, None if nobody waits for this batch."""
    encoded = batch.encoded
    size = 0 if encoded is None else encoded.nbytes + len(encoded.structure)
    if isinstance(window, Window):
        return window.finish(worker.key, batch.batch, (batch, worker), size, worker.id)
    if encoded is None and batch.failure is None:
        return window.end(worker.id, batch.shard, batch.batch, batch.state)
    return window.finish(worker.id, batch.shard, batch.batch, (batch, worker), size, batch.state)
