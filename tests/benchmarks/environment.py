"""On what the figures were measured."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    at: str
    processor: str
    cores: int
    memory_gb: float
    system: str
    python: str
    load: float
    """Processes that wanted a core in the minute before; well above 0: the machine was not idle."""
    versions: dict[str, str]
    """Competitor → version."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.at} · {self.processor}, {self.cores} cores, {self.memory_gb:.0f} GB, load {self.load:.1f}"
            f" · {self.system} · Python {self.python} · {versions}"
        )


def describe(versions: dict[str, str]) -> Environment:
    return Environment(
        at=time.strftime("%Y-%m-%d %H:%M"),
        processor=processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load=os.getloadavg()[0],
        versions=versions,
    )


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
