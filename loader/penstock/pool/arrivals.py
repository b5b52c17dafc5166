"""What workers answer: finished batches on their way through the window to the data queue. The conductor's thread."""

from __future__ import annotations

from collections.abc import Callable

from .crews.crew import Worker
from .crews.payload import Opened
from .dispatch import Dispatcher
from .epoch import Epoch
from .observer import Observer
from .tasks import Batch
from .window import Finished


class Arrivals:
    """Passes finished batches through the window to the pin stage or to the data queue."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        observer: Observer,
        pin: Callable[[Epoch, list[Finished]], None] | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._observer = observer
        self._pin = pin

    def receive(self, current: Epoch | None, foreseen: Epoch | None, worker: Worker, batches: list[Batch]) -> None:
        """A worker has answered tasks, of one of these epochs or of one that is over."""
        for batch in batches:
            worker.outstanding -= 1
            epoch = current
            if foreseen is not None and batch.epoch == foreseen.number:
                epoch = foreseen
            ready = None
            if worker.void:
                worker.void -= 1
            elif epoch is not None and batch.epoch == epoch.number:
                ready = epoch.window.accept(worker, batch)
            if epoch is None or ready is None:
                batch.discard()
                continue
            if batch.payload is not None or batch.failure is not None:  # else it is the end of a shard
                epoch.finished += 1
                self._dispatcher.learn(batch.sent - batch.start)
                if epoch is foreseen:
                    self._observer.batch_made(worker.id, batch)
                    epoch.unheard.append((worker.id, _weighed(batch), epoch.window.last_indices))
                else:
                    self._observer.batch_arrived(worker.id, batch, epoch.window.last_indices)
            self.deliver(epoch, ready)

    def tell(self, epoch: Epoch) -> None:
        """A foreseen epoch has begun: its batches are heard of now."""
        unheard, epoch.unheard = epoch.unheard, []
        for each in unheard:
            self._observer.batch_arrived(*each, counted=True)

    def deliver(self, epoch: Epoch, ready: list[Finished]) -> None:
        """Hand on what the window lets go."""
        if ready and self._pin is not None:
            epoch.pin_entered += len(ready)
            self._pin(epoch, ready)
        elif ready:
            epoch.ready.extend(ready)
            epoch.signal.set()
        if not epoch.window.shared and epoch.window.is_over():
            epoch.ended = True
            epoch.signal.set()


def _weighed(batch: Batch) -> Batch:
    """What there is to be told of a batch, without its memory."""
    return batch if batch.payload is None else batch._replace(payload=Opened(None, batch.payload.nbytes))
