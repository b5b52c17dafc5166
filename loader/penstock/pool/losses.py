"""A worker is gone: what becomes of its tasks or shards. The conductor's thread."""

from __future__ import annotations

from ..failures import WorkerLostError
from .arrivals import Arrivals
from .crews.reports import Died
from .epoch import Epoch
from .hangs import Hangs
from .observer import Observer


class Losses:
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

    def recover(self, epoch: Epoch | None, died: Died) -> bool:
        """Give a dead worker's tasks or shards to others; False if the pool cannot go on."""
        observer, worker = self._observer, died.worker
        if epoch is None:
            observer.recovered()
            observer.worker_died(worker.id, worker.pid, died.exitcode, -1, retried=False)
            return True
        window = epoch.window
        ended_here = self._hangs.blame(window, died)
        loss = window.lose(window.owner(worker), died.message, died.number, died.blame, self._max_retries)
        observer.worker_died(worker.id, worker.pid, died.exitcode, died.batch, loss.retried)
        self._arrivals.deliver(epoch, loss.ready)
        if loss.recovered:
            observer.recovered()
        if loss.recovered and not ended_here:  # else it is told with the batch
            observer.warn(loss.recovered)
        if worker.up or not died.blame:
            return True
        self._deaths_at_birth += 1
        if self._deaths_at_birth <= self._max_retries:
            return True
        epoch.fail(WorkerLostError(f"{died.message}, before its first batch"))
        return False
