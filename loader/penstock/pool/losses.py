"""A worker is gone: what becomes of its tasks or shards. The conductor's thread."""

from __future__ import annotations

from signal import strsignal

from ..failures import WorkerLostError, signal_name
from .arrivals import Arrivals
from .epoch import Epoch
from .observer import Observer
from .roster import WorkerHandle


class Losses:
    def __init__(self, arrivals: Arrivals, observer: Observer, max_retries: int) -> None:
        self._arrivals = arrivals
        self._observer = observer
        self._max_retries = max_retries
        self._deaths_at_birth = 0
        """Workers that died before they were up, since one was."""

    def forgive(self) -> None:
        """A worker is up, or an epoch begins: deaths at birth are counted from here on."""
        self._deaths_at_birth = 0

    def mourn(self, epoch: Epoch | None, worker: WorkerHandle, exitcode: int, batch: int, at: int, blame: bool) -> bool:
        """Give a dead worker's tasks or shards to others; False if the pool cannot go on.

        It was at `batch`, its task number `at`; -1 if it was at none, or is not to blame.
        """
        observer, signal = self._observer, signal_name(exitcode)
        if epoch is None:
            observer.recovered()
            observer.worker_died(worker.id, worker.pid, exitcode, -1, retried=False)
            return True
        cause = f"signal {signal}" if signal else f"exit code {exitcode}"
        message = f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly: worker {worker.id}, {cause}"
        if signal:  # torch's words, for those who look for them
            words = strsignal(-exitcode)
            message = f"DataLoader worker (pid {worker.pid}) is killed by signal: {words}. {message}"
        window = epoch.window
        loss = window.lose(window.owner(worker), message, at, blame, self._max_retries)
        observer.worker_died(worker.id, worker.pid, exitcode, batch, loss.retried)
        self._arrivals.deliver(epoch, loss.ready)
        if loss.recovered:
            observer.recovered()
            observer.warn(loss.recovered)
        if worker.up or not blame:
            return True
        self._deaths_at_birth += 1
        if self._deaths_at_birth <= self._max_retries:
            return True
        epoch.fail(WorkerLostError(f"{message}, before its first batch"))
        return False
