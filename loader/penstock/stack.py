"""A Python stack as text, innermost call first: of a thread of this process; what of it is the user's own; or why there
is none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from .profiling.ownership import is_users

LONGEST = 16384
"""Characters; of a longer stack the outermost calls are left out."""

_CALL = re.compile(r'^ *File "(?P<file>.*)", line \S+ in .*$')
_STATES = {
    "T": "its process is stopped",
    "t": "its process is held by a debugger",
    "D": "its process waits for the system (uninterruptible sleep: a disk or a network file system, as a rule)",
    "Z": "its process has ended",
}
"""Letter of a process's state in /proc → what that means."""


def of_thread(ident: int) -> str:
    """The stack of a thread of this process; empty if there is no such thread."""
    frame = sys._current_frames().get(ident)
    places = [(each.f_code, each.f_lineno) for each in _outwards(frame)]
    calls = [f'  File "{code.co_filename}", line {line} in {code.co_name}' for code, line in places]
    return "\n".join(["Thread (most recent call first):", *calls]) if calls else ""


def brief(stack: str) -> str:
    """The calls of the user's own functions; empty if there are none."""
    calls = [(line, _CALL.match(line)) for line in stack.splitlines()]
    return "\n".join(line for line, call in calls if call is not None and is_users(call["file"]))


def cut(stack: str) -> str:
    """The stack, as much of it as is told."""
    return stack if len(stack) <= LONGEST else stack[:LONGEST].rpartition("\n")[0]


def why_silent(pid: int) -> str:
    """Why a process of this machine does not tell its stack."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "its process has ended" if Path("/proc/self/stat").exists() else "it did not answer"
    except (OSError, IndexError):
        return "it did not answer"
    return _STATES.get(state, "it did not answer")


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
