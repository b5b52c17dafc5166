"""The workers of a pool, as the conductor knows them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .channel import Channel
from .slots import SlotTable


@dataclass(slots=True, eq=False)
class WorkerHandle:
    key: int
    """Never used twice in a pool, unlike the id: what a dead worker still sends cannot be taken for another's."""
    id: int
    channel: Channel
    pid: int = 0
    """0: not forked yet."""
    born: bool = False
    """Its birth was told."""
    up: bool = False
    """It has said hello and takes tasks."""
    leaving: bool = False
    """It was told to finish its batch and go."""
    left: bool = False
    """It said goodbye."""
    closed: bool = False
    """Its channel has reached its end."""
    congested: bool = False
    """The socket does not take more at the moment."""
    outstanding: int = 0
    """Tasks sent to it and not answered."""
    dispatched: int = 0
    """Tasks sent to it so far."""
    recalled: int = 0
    """Tasks before this one that it had not started were taken back."""
    slots: SlotTable = field(default_factory=SlotTable)


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker process as those see it who look for torch's in `iterator._workers`. It is the zygote's child."""

    pid: int
    name: str
    exits: dict[int, int]
    """Exit codes that the zygote has told, by pid."""

    @property
    def exitcode(self) -> int | None:
        """None while it lives. Of one that left as it was told to, nothing need have been told: 0."""
        return None if self.is_alive() else self.exits.get(self.pid, 0)

    def terminate(self) -> None:
        """End it, as torch's can be ended by those who look for them."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)

    def is_alive(self) -> bool:
        """Does the process exist?"""
        with contextlib.suppress(OSError):
            os.kill(self.pid, 0)
            return True
        return False

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for so many seconds at the most."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (end is None or time.monotonic() < end):
            time.sleep(0.005)


class Roster:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._workers: dict[int, WorkerHandle] = {}
        self._next_key = 0
        self._pids: dict[int, int] = {}
        """Id → pid of the last process that had it."""
        self._exits: dict[int, int] = {}

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def free_id(self) -> int | None:
        """The lowest id that no process has; None if the board is full."""
        used = {worker.id for worker in self._workers.values()}
        return next((number for number in range(self._rows) if number not in used), None)

    def add(self, worker: WorkerHandle) -> None:
        self._workers[worker.key] = worker

    def get(self, key: int) -> WorkerHandle | None:
        return self._workers.get(key)

    def remove(self, worker: WorkerHandle) -> None:
        self._workers.pop(worker.key, None)

    def note_fork(self, worker: WorkerHandle, pid: int) -> None:
        """The zygote has forked it."""
        worker.pid = self._pids[worker.id] = pid

    def note_exit(self, worker: WorkerHandle, pid: int, code: int) -> None:
        """The zygote has seen its end."""
        worker.pid = pid
        self._exits[pid] = code

    def processes(self) -> list[WorkerProcess]:
        """Those that there are; at the end of a pool, those that there were."""
        here = {worker.id for worker in self._workers.values()}
        pids = sorted(self._pids.items())
        return [
            WorkerProcess(pid, f"loader-worker-{number}", self._exits)
            for number, pid in pids
            if number in here or not here
        ]

    def active(self) -> list[WorkerHandle]:
        """Those that are meant to work, forked or about to be, by id."""
        return sorted((w for w in self._workers.values() if not w.leaving), key=lambda w: w.id)

    def forked(self) -> int:
        """How many of them exist as processes."""
        return sum(1 for w in self._workers.values() if w.pid and not w.leaving)
