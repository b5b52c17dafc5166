"""A worker is gone: what becomes of its tasks or shards. The conductor's thread."""

from __future__ import annotations

from ..failures import WorkerLostError
from .arrivals import Arrivals
from .crews.reports import Died
from .epoch import Epoch
from .hangs import Hangs
from .observer import Observer
from .window import Window

CARRIED_ON = "Its tasks go to another worker; the batches stay the same."


class Losses:
    """Gives the tasks or shards of dead workers to others, and counts deaths before the first batch."""

    def __init__(self, arrivals: Arrivals, observer: Observer, max_retries: int, hangs: Hangs) -> None:
        self._arrivals = arrivals
        self._hangs = hangs
        self._observer = observer
        self._max_retries = max_retries
        self._deaths_at_birth = 0
        """Workers that died before they were up, since one was."""

    def start_over(self) -> None:
        """A worker is up, or an epoch begins: deaths at birth are counted from here on."""
        self._deaths_at_birth = 0

    def recover(self, current: Epoch | None, foreseen: Epoch | None, died: Died) -> bool:
        """Give a dead worker's tasks or shards to others; False if the pool cannot go on."""
        observer, worker = self._observer, died.worker
        epoch = current or foreseen
        if epoch is None:
            observer.recovered()
            observer.worker_died(worker.id, worker.pid, died.exitcode, -1, retried=False)
            return True
        also = foreseen if epoch is current else None
        if also is not None and _has(also.window, died):
            epoch, also = also, epoch
        window = epoch.window
        ended_here = self._hangs.blame(window, died)
        loss = window.lose(window.owner(worker), died.message, died.number, died.blame, self._max_retries)
        retried = loss.retried
        if also is not None:  # it was not at any of these
            retried = also.window.lose(also.window.owner(worker), died.message, -1, False, self._max_retries).retried
        observer.worker_died(worker.id, worker.pid, died.exitcode, died.batch, retried or loss.retried)
        self._arrivals.deliver(epoch, loss.ready)
        if loss.recovered:
            observer.recovered()
        if loss.recovered and not ended_here:  # else it is told with the batch
            observer.warn("lost", f"{loss.recovered}. {CARRIED_ON}")
        if worker.up or not died.blame or current is None:
            return True
        self._deaths_at_birth += 1
        if self._deaths_at_birth <= self._max_retries:
            return True
        current.fail(WorkerLostError(f"{died.message}, before its first batch"))
        return False


def _has(window: Window, died: Died) -> bool:
    """Is the task that a worker died at one of this window's?"""
    return any(task.number == died.number >= 0 for task in window.out(window.owner(died.worker)))
