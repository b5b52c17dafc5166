"""The memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path

PROC = Path("/proc")


def descendants(root: int) -> list[int]:
    """The process, what it started, what that started; also orphans of its session."""
    session = os.getsid(root)
    children: dict[int, list[int]] = {}
    found = {root}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command's name, in parentheses, may hold anything: fields are counted after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        if int(fields[3]) == session and session == root:
            found.add(pid)
    pending = list(found)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return sorted(found)


def own_size(pid: int) -> int:
    """Resident bytes but for shared memory, pages in common divided among their processes; 0: it is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_File:")))


def shared_memory() -> int:
    """Bytes of shared memory on the whole machine.

    A batch on its way, or received and not yet read, is in nobody's page tables: a sum over processes would
    miss it, and torch keeps whole batches that way.
    """
    for line in (PROC / "meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no line Shmem")


class PeakMemory:
    """Samples this process's tree, and shared memory taken since, in a thread."""

    INTERVAL = 0.02

    def __init__(self) -> None:
        self.bytes = 0
        self._shared_before = shared_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.sample()

    def sample(self) -> None:
        private = sum(map(own_size, descendants(os.getpid())))
        self.bytes = max(self.bytes, private + max(0, shared_memory() - self._shared_before))

    def _watch(self) -> None:
        while not self._done.wait(self.INTERVAL):
            self.sample()
