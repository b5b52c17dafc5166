"""The processors that this process may use, and what others take of them.

May use: those in its affinity, and no more than the quota of its control group or of any group above (versions 1 and
2). Others: whatever runs on the processors in the affinity and is neither this process nor one of its workers; the time
that a hypervisor takes belongs to them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..protocol import Processors
from ..usage import training_ns

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_LOOK_AT_LIMITS = 10.0
"""Seconds after which affinity and quota are read again: they seldom change."""


class ProcessorWatch:
    """Looked at about once a second. `proc` and `cgroup` are where the system's files are."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._allowed = 0.0
        self._set: frozenset[int] = frozenset()
        self._read_limits_at = float("-inf")
        self._before: tuple[float, float] | None = None
        """Busy time of the processors and our own time at the last look, ms."""
        self._others = 0.0
        self._told = 0

    def look(self, workers_ms: int) -> Processors:
        """How things stand now, given the processor time of this process's workers so far."""
        now = time.monotonic()
        if now - self._read_limits_at >= _LOOK_AT_LIMITS:
            self._read_limits_at = now
            processors = affinity()
            if processors != self._set:
                self._set, self._before = processors, None
            self._allowed = min(float(len(processors)), quota(self._proc, self._cgroup) or float("inf"))
        training = training_ns() / 1e6
        busy = busy_ms(self._proc, self._set)
        if busy is not None:
            own = training + workers_ms
            if self._before is not None:
                # Not cut at 0 look by look: the two clocks tick apart, and half of their noise would be added up.
                self._others += (busy - self._before[0]) - (own - self._before[1])
            self._before = busy, own
        self._told = max(self._told, int(self._others))
        return Processors(self._allowed, self._told, int(training))


def affinity() -> frozenset[int]:
    """The processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def busy_ms(proc: Path, processors: frozenset[int]) -> float | None:
    """Time for which these processors were not idle; None: the system does not say."""
    try:
        text = (proc / "stat").read_bytes()
    except OSError:
        return None
    total = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if not name.startswith(b"cpu"):
            break  # they come first, and what follows may be long
        if name != b"cpu" and int(name[3:]) in processors:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total * _TICK_MS


def quota(proc: Path, cgroup: Path) -> float | None:
    """Processors that control groups grant; None: no limit."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    granted: list[float] = []
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            granted += _walk(cgroup, path, _quota_2) + _walk(cgroup / "unified", path, _quota_2)
        elif "cpu" in controllers.split(","):
            for mount in {controllers, "cpu", "cpu,cpuacct"}:
                granted += _walk(cgroup / mount, path, _quota_1)
    return min(granted, default=None)


def _walk(root: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """The limits of a group and of those above. In a container the path may be the host's: what is there counts."""
    group = root / path.lstrip("/")
    groups = [group, *group.parents]
    found = (read(each) for each in groups[: groups.index(root) + 1])
    return [limit for limit in found if limit is not None]


def _quota_2(group: Path) -> float | None:
    try:
        most, period = (group / "cpu.max").read_text().split()
        return int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None


def _quota_1(group: Path) -> float | None:
    try:
        most, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return most / period if most > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
