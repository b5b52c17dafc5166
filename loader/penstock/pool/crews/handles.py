"""A worker process as those see it who look for torch's in `iterator._workers`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """A process that is not our child but the zygote's."""

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
