"""The variables of a frame that belongs to somebody else, looked at without keeping them alive.

Up to Python 3.12 `frame.f_locals` of a function makes a dict of all its variables, which the frame then keeps until
the function returns: a loader that the function deletes would go on to live, and so would its workers, its dataset and
every tensor that was there. Whoever has that dict besides us (`locals()`, a debugger) asked for it and keeps it.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

_OURS = 3
"""References to the dict if nobody else has it: the frame's, the one in `variables`, and `getrefcount`'s own."""


def variables(frame: FrameType) -> dict[str, Any]:
    """A copy of the frame's variables, as they are now."""
    kept = frame.f_locals
    copied = dict(kept)
    if type(kept) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(kept) <= _OURS:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):  # the next look brings them back
            kept.pop(name, None)
    return copied
