"""Whose turn it is among the ranks of a host, and what the others take: through one file, without a server.

1. Every user has one file on a host, of fixed-size records, in a folder that is theirs. A loader that is tuned has one.
2. A record counts while its process holds a lock on its first byte. Such a lock belongs to the process, not to its
   children, and ends with it, whatever ends it: there is nothing to clean up, and nobody is taken for alive who is not.
3. The turn is a lock as well, on a byte behind the records. Who holds it may try something; all others hold still, so
   that what is measured is due to the one thing that was changed.
4. A process has one descriptor for the file and never closes it: closing any would end all its locks. Its own loaders
   are told apart in memory. A forked child starts without locks and opens the file anew.
5. Where ranks do not see the same file (containers that share nothing, other users), each is tuned for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

RECORDS = 256
"""The most loaders that share a host."""
STALE = 10.0
"""Seconds after which what a rank told is not of use any more: it may be stopped, or between two epochs."""
AHEAD = 0.02
"""A rank that waits by this much more of its time than another goes first."""

_RECORD = struct.Struct("=dddi?")
_SIZE = 64
_TURN = RECORDS * _SIZE


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank says of itself."""

    at: float
    """When it said so, seconds of the system's monotonic clock."""
    waiting: float
    """Share of its time for which training waits, 0 to 1."""
    processors: float
    """Processors that its workers use."""
    workers: int
    wants: bool
    """Whether it has something to try."""


class Host:
    """The records of all ranks of this user on this host."""

    def __init__(self, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._mine: set[int] = set()
        self._turn: int | None = None
        """The record of the loader of this process whose turn it is."""
        self.alone = ""
        """Why ranks cannot see each other; empty: they can."""
        self._file = -1
        try:
            self._file = _open(_folder() if folder is None else folder)
        except OSError as error:
            self.alone = f"no file can be shared: {error.strerror or error}"

    def join(self) -> Rank | None:
        """A record for one loader; None: there is none to be had."""
        with self._lock:
            for number in range(RECORDS):
                if self._file >= 0 and number not in self._mine and self._grab(number * _SIZE):
                    self._mine.add(number)
                    return Rank(self, number)
        return None

    def living(self) -> dict[int, Told]:
        """What all ranks have told lately, by the numbers of their records."""
        found = {}
        with self._lock:
            now, records = time.monotonic(), os.pread(self._file, _TURN, 0)
            for number in range(len(records) // _SIZE):
                told = Told(*_RECORD.unpack_from(records, number * _SIZE))
                if 0 <= now - told.at < STALE and self._is_alive(number):
                    found[number] = told
        return found

    def _is_alive(self, number: int) -> bool:
        if number in self._mine:
            return True
        if not self._grab(number * _SIZE):
            return True
        self._let_go(number * _SIZE)
        return False

    def _grab(self, place: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        return True

    def _let_go(self, place: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    # -- called by `Rank` -----------------------------------------------------------------------------------

    def tell(self, number: int, told: Told) -> None:
        record = _RECORD.pack(told.at, told.waiting, told.processors, told.workers, told.wants)
        os.pwrite(self._file, record.ljust(_SIZE, b"\0"), number * _SIZE)

    def take_turn(self, number: int) -> bool:
        with self._lock:
            if self._turn is None and self._grab(_TURN):
                self._turn = number
            return self._turn == number

    def end_turn(self, number: int) -> None:
        with self._lock:
            if self._turn == number:
                self._turn = None
                self._let_go(_TURN)

    def leave(self, number: int) -> None:
        self.end_turn(number)
        with self._lock:
            if number in self._mine:
                self._mine.remove(number)
                os.pwrite(self._file, bytes(_SIZE), number * _SIZE)
                self._let_go(number * _SIZE)


class Rank:
    """One loader among those of its host."""

    def __init__(self, host: Host, number: int) -> None:
        self._host = host
        self._number = number

    def tell(self, waiting: float, processors: float, workers: int, wants: bool) -> None:
        """Say how it stands, so that others can go first, or leave room."""
        self._host.tell(self._number, Told(time.monotonic(), waiting, processors, workers, wants))

    def others(self) -> list[Told]:
        """What the other ranks say."""
        return [told for number, told in self._host.living().items() if number != self._number]

    def take_turn(self, waiting: float) -> bool:
        """Whether this rank may try something now. It may until `end_turn`; those who wait longer for data go first."""
        if self._host._turn != self._number and any(
            each.wants and each.waiting > waiting + AHEAD for each in self.others()
        ):
            return False
        return self._host.take_turn(self._number)

    def end_turn(self) -> None:
        """Somebody else may try something."""
        self._host.end_turn(self._number)

    def leave(self) -> None:
        """The loader is not tuned any more."""
        self._host.leave(self._number)


def _folder() -> Path:
    """One that only this user can write to, and all their processes on this host see."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "penstock"
    return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"


def _open(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(0, f"{folder} belongs to another user")
    return os.open(folder / "ranks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


_host: Host | None = None
_making = threading.Lock()


def this_host() -> Host:
    """The one `Host` of this process."""
    global _host
    with _making:
        if _host is None:
            _host = Host()
        return _host


def _start_over_after_fork() -> None:
    """Locks belong to the parent, and a lock of its threads may be held for ever here."""
    global _host, _making
    _host, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_start_over_after_fork)
