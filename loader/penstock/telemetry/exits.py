"""How the process ends, if it ends by `sys.exit` or `raise SystemExit`: Python keeps nothing of that for exit handlers.

`sys.exit(1)` is how many trainings say that they failed, and how `torch.multiprocessing.spawn` ends a process whose
function raised: then the exception is the one that is being handled. It is a function, and listened to as one.

`raise SystemExit(main())` calls nothing. But before the interpreter ends, it reads the exception's `code` with no
Python code above it on the stack; nobody else can. So that is where this listens: the descriptor of `SystemExit.code`
is replaced by one that reads and writes the same place, in the type's dictionary, since types of C have no other way
in. Where that is not as it was in Python 3.11 to 3.13, nothing is replaced, and such an exit counts as an ordinary end.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import threading
import time
from typing import Any, NamedTuple, NoReturn


class Exit(NamedTuple):
    """An exit that was not a success."""

    at: int
    """When `sys.exit` was called, or the interpreter began to end; ns of the monotonic clock."""
    reason: BaseException
    """The exception that was being handled then, or the exit itself."""


_last: Exit | None = None


def listen() -> None:
    """From now on note exits that say that something went wrong."""
    if getattr(sys.exit, "penstock_listens", False):
        return
    original = sys.exit

    @functools.wraps(original)
    def exit(status: object = None, /) -> NoReturn:
        _note(status)
        original(status)  # type: ignore[arg-type]

    exit.penstock_listens = True  # type: ignore[attr-defined]
    sys.exit = exit
    _listen_at_the_end()


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
    """The last exit, if it said that something went wrong."""
    return _last


class _Code:
    """`SystemExit.code`, and who reads it."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self.__doc__ = place.__doc__

    def __get__(self, exit: SystemExit | None, owner: type | None = None) -> Any:
        if exit is None:
            return self
        code = self._place.__get__(exit, owner)
        if _is_the_end():
            _note_end(exit, code)
        return code

    def __set__(self, exit: SystemExit, code: object) -> None:
        self._place.__set__(exit, code)

    def __delete__(self, exit: SystemExit) -> None:
        self._place.__delete__(exit)


def _is_the_end() -> bool:
    """Whether the interpreter itself asks, in the main thread: no Python code is above."""
    try:
        sys._getframe(2)
    except ValueError:
        return threading.get_ident() == threading.main_thread().ident
    return False


def _note_end(exit: SystemExit, code: object) -> None:
    global _last
    if code in (None, 0):
        _last = None
    elif _last is None or not isinstance(_last.reason, Exception):
        _last = Exit(time.monotonic_ns(), exit.with_traceback(None))
    # else: `sys.exit` was called while an exception was handled, and that one is told


def _listen_at_the_end() -> None:
    found = gc.get_referents(SystemExit.__dict__)
    names = found[0] if found and isinstance(found[0], dict) else {}
    place = names.get("code")
    if type(place).__name__ == "member_descriptor":
        names["code"] = _Code(place)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
