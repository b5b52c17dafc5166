"""What workers answer: finished batches on their way through the window to the data queue. The conductor's thread."""

from __future__ import annotations

from collections.abc import Callable

from .crews.crew import Worker
from .dispatch import Dispatcher
from .epoch import Epoch
from .observer import Observer
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

    def receive(self, epoch: Epoch | None, worker: Worker, batches: list[Batch]) -> None:
        """A worker has answered tasks, of this epoch or of one that is over."""
        for batch in batches:
            worker.outstanding -= 1
            ready = None
            if epoch is not None and batch.epoch == epoch.number:
                ready = epoch.window.accept(worker, batch)
            if epoch is None or ready is None:
                batch.discard()
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
