"""The files that a profile can be saved as, for other programs to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .folded import folded
from .pprof import pprof
from .speedscope import speedscope

if TYPE_CHECKING:
    from ..profile import Profile

_BY_ENDING: dict[str, Callable[[Profile], bytes]] = {
    ".speedscope.json": speedscope,
    ".json": speedscope,
    ".folded": folded,
    ".txt": folded,
    ".pb.gz": pprof,
    ".pprof": pprof,
}


def format_for(name: str) -> Callable[[Profile], bytes]:
    """What writes a file of this name.

    Raises:
        ValueError: The name's ending says nothing.
    """
    for ending, write in _BY_ENDING.items():
        if name.endswith(ending):
            return write
    known = ", ".join(_BY_ENDING)
    raise ValueError(f"a profile is saved by its name's ending, one of {known}, but got {name!r}")
