"""The end of the demo by Ctrl-C or SIGTERM."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import NoReturn


class Ending:
    """From its making on, the first of these signals raises KeyboardInterrupt; more of them change nothing.

    `asked` stays true: Python drops an exception that is raised while a finalizer runs, and then a loop has to ask.
    """

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        if not self.asked:
            self.asked = True
            raise KeyboardInterrupt


def leave(status: int) -> NoReturn:
    """End the process as Python does, but leave out to take torch apart, which takes seconds where cores are few."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
