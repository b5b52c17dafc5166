"""Worker deaths on purpose, as the kernel's OOM killer would cause them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import Any

from .. import DataLoader


class Accidents:
    """Kills one of the loader's workers every so many seconds; never, if None."""

    def __init__(self, loader: DataLoader[Any], every: float | None) -> None:
        self._loader = loader
        self._every = every
        self._next = time.monotonic() + (every or 0.0)

    def happen(self) -> None:
        """Called after every step."""
        if self._every is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        busy = [worker.pid for worker in self._loader.stats().workers if worker.state == "fetching"]
        if busy:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(busy), signal.SIGKILL)
