"""`penstock` in a real pseudo-terminal, its output drawn by an emulator so that tests see what a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any

import pyte

from tests.backend.harness import ROOT, until
from tests.patience import PATIENCE

LAUNCH = """
import ctypes, fcntl, sys, termios
ctypes.CDLL(None).prctl(1, 9)            # the kernel ends us with the test, however that ends
fcntl.ioctl(0, termios.TIOCSCTTY, 0)     # Ctrl-C and window changes reach only who has a controlling terminal
"""
COMMAND = LAUNCH + "from penstock_dashboard.cli import main; sys.exit(main())"
COLOUR = re.compile(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7])m")

LAST = b"\x1b]2;the end\x07"
"""A title for the window: nothing is drawn by it."""


class Screen:
    def __init__(self, process: subprocess.Popen[bytes], terminal: int, own_end: int, before: list[Any]) -> None:
        self.process = process
        self.before = before
        """The terminal's settings before anything touched it."""
        self.output = b""
        """All that was written."""
        self._terminal = terminal
        self._own_end = own_end
        self._lock = threading.Lock()
        self._drawn = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._drawn)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        with self._lock:
            return [line.rstrip() for line in self._drawn.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def settings(self) -> list[object]:
        return termios.tcgetattr(self._own_end)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows this."""
        try:
            return until(lambda: re.search(pattern, self.text), pattern)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def resize(self, columns: int, rows: int) -> None:
        with self._lock:
            self._drawn.resize(rows, columns)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self) -> int:
        status = self.process.wait(PATIENCE)
        # Our own end keeps the terminal open, so the reader does not end by itself. What is written there now comes
        # last: with it, all has been read.
        os.write(self._own_end, LAST)
        until(lambda: self.output.endswith(LAST), "the rest of the output")
        with self._lock:
            self.output = self.output[: -len(LAST)]
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own_end)
        self._reader.join(PATIENCE)
        os.close(self._terminal)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last one has closed the other end
            while data := os.read(self._terminal, 65536):
                with self._lock:
                    self.output += data
                    self._stream.feed(data)


@contextlib.contextmanager
def screen(*arguments: str, code: str = COMMAND, **environment: str) -> Iterator[Screen]:
    """A command in a terminal of 80 × 24."""
    terminal, own_end = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(own_end)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "NO_COLOR"))}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**kept, "TERM": "xterm-256color", **environment},
        stdin=own_end,
        stdout=own_end,
        stderr=own_end,
        start_new_session=True,
    )
    shown = Screen(process, terminal, own_end, before)
    try:
        yield shown
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        shown.close()
