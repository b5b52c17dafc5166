"""How short memory is, by the machine's and the container's account."""

from __future__ import annotations

from pathlib import Path

SHORT = 0.1
"""Share of the memory that is left: below it, no more workers."""
ALARM = 0.03
"""Share of the memory that is left: below it, processes may soon be killed."""

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def memory() -> tuple[bool, bool]:
    """Whether memory is short, and whether it is nearly used up."""
    left = min(_left_on_machine(), _left_in_container())
    return left < SHORT, left < ALARM


def _left_on_machine() -> float:
    try:
        lines = (line.split() for line in _MEMINFO.read_text().splitlines())
        sizes = {line[0]: int(line[1]) for line in lines if len(line) > 1}
        return sizes["MemAvailable:"] / sizes["MemTotal:"]
    except (OSError, KeyError, ValueError, ZeroDivisionError):  # the system does not say
        return 1.0


def _left_in_container() -> float:
    try:
        limit = int((_CGROUP / "memory.max").read_text())  # "max": none
        used = int((_CGROUP / "memory.current").read_text())
        lines = (line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # Files that were read some time ago are given up when memory is needed.
        spare = next((int(line[1]) for line in lines if line[0] == "inactive_file"), 0)
        return max(limit - used + spare, 0) / limit
    except (OSError, ValueError, IndexError, ZeroDivisionError):
        return 1.0
