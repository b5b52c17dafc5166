"""How the process ends, if it ends by `sys.exit`: Python itself keeps nothing of that for exit handlers.

`sys.exit(1)` is how many trainings say that they failed, and how `torch.multiprocessing.spawn` ends a process whose
function raised: then the exception is the one that is being handled.

A bare `raise SystemExit(1)` calls nothing that could be listened to, short of changing the built-in type, which is not
ours to change: it counts as an ordinary end.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import NamedTuple, NoReturn


class Exit(NamedTuple):
    """A call of `sys.exit` that was not a success."""

    at: int
    """When `sys.exit` was called, ns of the monotonic clock."""
    reason: BaseException
    """The exception that was being handled then, or the exit itself."""


_last: Exit | None = None


def listen() -> None:
    """From now on note calls of `sys.exit` that say that something went wrong."""
    if getattr(sys.exit, "penstock_listens", False):
        return
    original = sys.exit

    @functools.wraps(original)
    def exit(status: object = None, /) -> NoReturn:
        _note(status)
        original(status)  # type: ignore[arg-type]

    exit.penstock_listens = True  # type: ignore[attr-defined]
    sys.exit = exit


def _note(status: object) -> None:
    global _last
    handled = sys.exc_info()[1]
    now, before = time.monotonic_ns(), _last
    if status in (None, 0):
        _last = None
    elif isinstance(handled, Exception):
        _last = Exit(now, handled)
    elif before is not None and isinstance(before.reason, Exception):
        _last = Exit(now, before.reason)  # whoever caught that exit passes it on
    else:
        _last = Exit(now, SystemExit(status))


def failed_exit() -> Exit | None:
    """The last call of `sys.exit`, if it said that something went wrong."""
    return _last
