"""What workers send: finished batches on their way through the window to the data queue. The conductor's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .codec import Encoded
from .delivery import give_back
from .dispatch import Dispatcher
from .epoch import Epoch
from .observer import Observer
from .roster import WorkerHandle
from .tasks import Batch
from .window import Finished


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
                ready = epoch.window.accept(worker, batch)
            if epoch is None or ready is None:
                give_back(worker, batch)
                continue
            if not batch.is_end():
                epoch.finished += 1
                self._dispatcher.learn(batch.sent - batch.start)
                self._observer.batch_arrived(worker.id, batch, epoch.window.last_indices)
            self.deliver(epoch, ready)

    def deliver(self, epoch: Epoch, ready: list[Finished]) -> None:
        """Hand on what the window lets go."""
        if ready and self._pin is not None:
            epoch.pin_entered += len(ready)
            self._pin(epoch, ready)
        elif ready:
            epoch.ready.extend(ready)
            epoch.signal.set()
        if epoch.window.is_over():
            epoch.ended = True
            epoch.signal.set()
