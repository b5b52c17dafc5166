"""Systems other than Linux: the pool works without what only Linux has; where it cannot work, it says so.

macOS is not at hand here. What it lacks is taken away instead, before anything is imported, from every process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.loader.support import ROOT, _stats, wait_until
from tests.patience import PATIENCE

HERE = Path(__file__).parent / "without_linux"


@contextmanager
def training(action: str, method: str) -> Iterator[subprocess.Popen[str]]:
    """A training in a session of its own, in which nothing is left when this ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.loader.without_linux", action, method],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            for pid in _session(process.pid):
                os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> set[int]:
    return {int(pid) for pid, fields in _stats() if int(fields[3]) == leader}


def facts_of(action: str, method: str) -> Any:
    """What such a training saw, once it and all that it started have ended."""
    with training(action, method) as process:
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        wait_until(lambda: not _session(process.pid), "the end of all its processes")
    facts = json.loads(said)
    assert not any(facts["features"].values()), "the test must run without them"
    return facts


def names() -> set[Path]:
    """What has a name in shared memory."""
    return set(Path("/dev/shm").glob("penstock-*"))


def test_the_whole_pool_works_without_what_only_linux_has() -> None:
    before = names()
    facts = facts_of("everything", "fork")
    assert facts["map"] == list(range(120))
    assert facts["iterable"] == [list(range(30))] * 2
    assert facts["descriptors"][0] >= facts["descriptors"][1], "descriptors are left"
    # Others on this machine may have some for an instant.
    wait_until(lambda: names() <= before, "the end of all names")
    # What the system cannot do or tell is said, or left out.
    assert facts["pinned"]["mode"] == "none"
    assert ["has no mlock" in text for text in facts["pinned"]["said"]] == [True]
    assert facts["pinned"]["rss"] == [0]


def test_so_it_does_when_processes_are_spawned() -> None:
    """As on macOS by default."""
    assert facts_of("brief", "spawn")["map"] == list(range(120))


def test_no_worker_outlives_its_zygote_where_the_system_does_not_see_to_it() -> None:
    with training("hang", "fork") as process:
        assert process.stdout is not None
        zygote, *workers = json.loads(process.stdout.readline())
        os.kill(zygote, signal.SIGKILL)
        wait_until(lambda: not _session(process.pid) & set(workers), "the end of its workers")
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not _session(process.pid), "the end of all its processes")


def test_windows_is_told_what_to_do() -> None:
    code = "import sys; sys.platform = 'win32'; import loader"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "WSL 2" in last
