"""How much memory finished batches may take by default."""

from __future__ import annotations

import os
import re
from pathlib import Path

DEFAULT = 512 << 20
"""Bytes: enough to ride out slow samples with batches of images, little beside a model."""

_CGROUP = Path("/sys/fs/cgroup")


def memory_limits(memory_budget: int | None) -> tuple[int, int]:
    """Return (budget, ceiling) in bytes.

    A number that the user gave is both. By default the budget is `DEFAULT`; where two batches a worker, which is what
    torch holds, need more, it stretches to a quarter of the memory that is available.
    """
    if memory_budget is not None:
        return memory_budget, memory_budget
    quarter = available_memory() // 4
    return min(DEFAULT, quarter), quarter


def available_memory() -> int:
    """Bytes that this process could still use, by the machine's and the container's account."""
    available = _available_on_machine()
    limit = _number(_CGROUP / "memory.max")
    used = _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(limit - used, 0))
    return available


def _available_on_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (OSError, ValueError):  # the system does not say
        return 4 * DEFAULT


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def bytes_of(size: int | str, argument: str) -> int:
    """Bytes from a number, or from a text such as "8 GB" (powers of 1,000) or "8 GiB" (powers of 1,024)."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    told = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", str(size), re.IGNORECASE)
    if not isinstance(size, str) or told is None:
        raise ValueError(f'{argument} should be a number of bytes, or a text such as "8 GB", but is {size!r}')
    number, unit, binary = told.groups()
    return int(float(number) * (1024 if binary else 1000) ** _UNITS[unit.upper()])
