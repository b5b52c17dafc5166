"""Who publishes: run, rank and name."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import sys
import threading
import time
import weakref
from pathlib import Path

from ..protocol import Identity, label
from .source import Source

_lock = threading.Lock()
_run: tuple[int, str] | None = None
"""Process and the run id that was generated in it: all its loaders share it, a forked training has its own."""
_names: dict[str, weakref.ref[Source]] = {}
_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def make_identity(source: Source) -> Identity:
    """A new incarnation of the loader behind `source`."""
    rank, world_size = rank_and_world_size()
    return Identity(
        run=run_id(world_size),
        name=_claim(source),
        rank=rank,
        world_size=world_size,
        host=socket.gethostname()[:256],
        pid=os.getpid(),
        incarnation=secrets.token_hex(8),
    )


def rank_and_world_size() -> tuple[int, int]:
    """From torch.distributed if it is initialized, else from the environment, else the only process."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    return (rank, max(world_size, 1)) if 0 <= rank < max(world_size, 1) else (0, 1)


def run_id(world_size: int = 1) -> str:
    """$PENSTOCK_RUN, else torchrun's id, else one that is generated: script, time, four characters."""
    global _run
    given = os.environ.get("PENSTOCK_RUN", "").strip()
    if given:
        return label(given)
    launched = os.environ.get("TORCHELASTIC_RUN_ID", "").strip()
    if _MADE_UP.fullmatch(launched):  # by torchrun --standalone: the script says more
        return label(f"{_script()}-{launched[:8]}")
    if launched not in ("", "none"):
        return label(launched)
    with _lock:
        if _run is None or _run[0] != os.getpid():
            _run = os.getpid(), label(_shared(world_size) if world_size > 1 else _own())
        return _run[1]


def _own() -> str:
    return f"{_script()}-{_moment(time.time())}-{secrets.token_hex(2)}"


def _shared(world_size: int) -> str:
    """The same in all processes of one launch, which cannot ask each other: on one machine they have one parent, and
    across machines only the address at which they meet is common to all.
    """
    nodes = world_size // max(_number("LOCAL_WORLD_SIZE", world_size), 1)
    if nodes > 1:
        meeting = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        return f"{_script()}-{_digest(meeting)}"
    parent = os.getppid()
    born = _born(parent)
    when = "" if born is None else f"-{_moment(born)}"
    return f"{_script()}{when}-{_digest(f'{socket.gethostname()}:{parent}')}"


def _born(pid: int) -> float | None:
    """When a process started, where the system says so."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _script() -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    stem = Path(main).stem if main else "python"
    if stem == "__main__" and main:  # python -m package
        stem = Path(main).parent.name
    return label(stem)[:32]


def _moment(at: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(at))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        return default


def _claim(source: Source) -> str:
    """The source's name, with a number if another loader of this process has it. Names of loaders that are gone are
    free again: one that is made anew for every epoch stays one loader.
    """
    wanted = label(source.name)
    with _lock:
        name, number = wanted, 1
        while not _is_free(name):
            number += 1
            name = f"{wanted[:58]}-{number}"
        _names[name] = weakref.ref(source)
        return name


def _is_free(name: str) -> bool:
    holder = _names.get(name)
    source = None if holder is None else holder()
    return source is None or source.gone


def _start_over_after_fork() -> None:
    """What the parent publishes is not published here."""
    global _lock
    _lock = threading.Lock()
    _names.clear()


os.register_at_fork(after_in_child=_start_over_after_fork)
