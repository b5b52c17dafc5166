"""The demo at a terminal, with a dashboard of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.backend.harness import ROOT, environment
from tests.loader.demo.conftest import BODY
from tests.loader.support import Scripts, wait_until
from tests.patience import PATIENCE

LINK = re.compile(r"Penstock is at (http://127\.0\.0\.1:\d+)/#once=([^&\s]+)(?:&loader=\S+)?\r?\n")


class Terminal:
    """`penstock demo` on a pseudo-terminal, in a session of its own."""

    def __init__(self, home: Path) -> None:
        self.said = ""
        self.pid, self._keyboard = pty.fork()
        if not self.pid:
            os.chdir(ROOT)
            os.execve(
                sys.executable, [sys.executable, "-m", "penstock_dashboard", "demo", "--port", "0"], environment(home)
            )

    def read_until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.said)) is None:
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"never said {pattern}: {self.said!r}")
        return found

    def press(self, key: bytes) -> None:
        os.write(self._keyboard, key)

    def wait(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        for pid in session(self.pid):
            os.kill(pid, signal.SIGKILL)
        os.close(self._keyboard)

    def _read(self) -> bool:
        """False: nobody is there to write any more."""
        if not select.select([self._keyboard], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._keyboard, 1 << 16)
        except OSError:  # how Linux says so
            return False
        self.said += data.decode()
        return bool(data)


def session(leader: int) -> list[int]:
    """Its processes, orphans included."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


def test_it_says_where_to_look_and_how_it_goes_and_ctrl_c_ends_all_of_it(terminal: Terminal) -> None:
    url, once = terminal.read_until(LINK.pattern).groups()
    with httpx.Client(base_url=url) as client:
        assert client.post("/api/session", json={"once": once}).status_code == 200, "the link signs in"
    assert "&loader=demo%3A0%3Atrain" in terminal.said, "and opens the page of its loader"
    terminal.read_until(r"\r +\d+\.\d batches/s, waiting for data +\d+%, 2 workers, epoch 0\x1b\[K\r")
    terminal.press(b"\x03")
    assert terminal.wait() == 0
    wait_until(lambda: not session(terminal.pid), "the end of every process")
    assert "Traceback" not in terminal.said and "Warning" not in terminal.said


def test_the_dashboard_does_not_outlive_a_killed_demo(script: Scripts, tmp_path: Path) -> None:
    with script(BODY, json.dumps(environment(tmp_path)), "--port", "0", "--scenario", "balanced") as running:
        assert LINK.fullmatch(running.line() + "\n")
        running.line()
        running.signal(signal.SIGKILL)
        running.finish()


def test_it_ends_after_the_seconds_it_was_given(script: Scripts, tmp_path: Path) -> None:
    arguments = ("--port", "0", "--scenario", "balanced", "--seconds", "0.5")
    with script(BODY, json.dumps(environment(tmp_path)), *arguments) as running:
        said, complaints = running.finish()
        assert running.status == 0
        assert LINK.search(said) and complaints == ""


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_help_lists_the_scenarios_without_loading_torch() -> None:
    code = (
        "import sys, contextlib\nfrom penstock_dashboard.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['demo', '--help'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    ran = python(code)
    assert ran.returncode == 0, ran.stderr
    for name in ("balanced", "starved", "skewed", "crashing", "pinned", "iterable", "remote", "many-ranks"):
        assert re.search(rf"^  {name} +\w", ran.stdout, re.MULTILINE), "each with a line about it"


def test_without_pillow_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['PIL'] = None; from penstock_dashboard.cli import main; sys.exit(main(['demo']))"
    ran = python(code)
    assert ran.returncode == 1
    assert "pip install pillow" in ran.stderr and "Traceback" not in ran.stderr
