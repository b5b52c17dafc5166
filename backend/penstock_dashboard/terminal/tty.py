"""The terminal itself: taken over, drawn on, and given back as it was in every ending.

While it is ours: keys come one by one and unseen (but Ctrl-C and Ctrl-Z still make signals), the other screen is
shown, the cursor is hidden. `__exit__` undoes all three. Signals only set a mark and wake the loop, so that nothing is
ever interrupted half-way, and the way out is the same for q, Ctrl-C, SIGTERM and an exception.

A terminal that cannot move its cursor (TERM=dumb) gets a new picture below the last one, now and then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from types import FrameType, TracebackType

from ..terminal.canvas import Line, fitted, painted, plain

ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
DUMB_EVERY = 2.0
"""Seconds between two pictures on a terminal that cannot move its cursor."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def colourful() -> bool:
    """Whether this terminal wants colours (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


class Terminal:
    """The terminal, taken for as long as the block lasts and given back at its end."""

    def __init__(self) -> None:
        self._source, self._sink = sys.stdin.fileno(), sys.stdout.fileno()
        self._dumb = os.environ.get("TERM", "dumb") == "dumb"
        self._colour = colourful()
        self._saved: list[object] = termios.tcgetattr(self._source)
        self._shown: list[str] = []
        self._drawn = 0.0
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._handlers: dict[signal.Signals, object] = {}
        self._wakeup = -1
        self._suspend = False
        self.ended_by = 0
        """The signal that asks us to end; 0: none."""

    def __enter__(self) -> Terminal:
        self._wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (*ENDINGS, signal.SIGWINCH, signal.SIGTSTP):
            self._handlers[number] = signal.signal(number, self._signalled)
        self._take()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        try:
            self._give_back()
        finally:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            os.close(self._wake_read)
            os.close(self._wake_write)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, now."""
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self._sink)
            if columns and rows:
                return columns, rows
        return 80, 24

    def wake(self) -> None:
        """End a wait, from any thread."""
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody waits any more
            os.write(self._wake_write, b"\0")

    def wait(self, seconds: float) -> bytes | None:
        """What was typed, after at most so many seconds; b"" if nothing was; None if the terminal is gone."""
        ready, _, _ = select.select([self._source, self._wake_read], [], [], max(0.0, seconds))
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake_read, 4096):
                    pass
        if self._suspend:
            self._stop()
        if self._source not in ready or self.ended_by:
            return b""
        try:
            return os.read(self._source, 1024) or None
        except OSError:
            return None

    def draw(self, lines: Sequence[Line], urgent: bool = False) -> None:
        """Show these lines; only what differs from what is there is written."""
        columns, rows = self.size
        if self._dumb:
            self._draw_dumb([plain(fitted(line, columns)) for line in lines], urgent)
            return
        fresh = [painted(fitted(line, columns), self._colour) for line in lines[:rows]]
        fresh += [""] * (rows - len(fresh))
        if len(self._shown) != rows:
            self._shown = [" "] * rows  # no line is like this one, so all are written
        pairs = enumerate(zip(fresh, self._shown, strict=True), 1)
        changed = [f"\x1b[{row};1H{line}\x1b[K" for row, (line, old) in pairs if line != old]
        self._shown = fresh
        if changed:
            self._write("".join(changed))

    def forget(self) -> None:
        """The screen is no longer what we drew: draw all of it next time."""
        self._shown = []

    def _draw_dumb(self, lines: list[str], urgent: bool) -> None:
        now = time.monotonic()
        if lines == self._shown or (now - self._drawn < DUMB_EVERY and not urgent):
            return
        self._shown, self._drawn = lines, now
        self._write("\n".join([*(line for line in lines if line), "", ""]))

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if number in ENDINGS:
            self.ended_by = number
        elif number == signal.SIGTSTP:
            self._suspend = True
        else:
            self.forget()

    def _stop(self) -> None:
        """Ctrl-Z: give the terminal back, stop as everybody else would, and take it again when we go on."""
        self._suspend = False
        self._give_back()
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        self._take()

    def _take(self) -> None:
        mode = termios.tcgetattr(self._source)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(self._source, termios.TCSADRAIN, mode)
        if not self._dumb:
            self._write(ENTER)
        self.forget()

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # it may be gone
            if not self._dumb:
                self._write(LEAVE)
            # What was typed and not read is dropped: the shell should not take it for a command.
            termios.tcsetattr(self._source, termios.TCSAFLUSH, self._saved)  # type: ignore[arg-type]

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._sink, data) :]
