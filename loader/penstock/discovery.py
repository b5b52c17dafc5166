"""How a loader finds the dashboard of its own user on its own machine: one small file, private to that user.

The dashboard writes it once it listens and removes it when it ends; after a crash it stays behind, so a
reader also asks whether the process that wrote it still lives. The dashboard uses this module: no torch here.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec


class Discovery(msgspec.Struct, frozen=True):
    """Where the local dashboard is and how to be let in."""

    url: str
    """Address of the dashboard without a trailing slash, for example http://127.0.0.1:8787."""
    token: str
    """A token that may publish, view and control."""
    pid: int
    """The dashboard's process."""
    started: float
    """When it began to listen, Unix time, s."""
    framed: bool = False
    """Whether some other page may show it in a frame."""


def state_home() -> Path:
    """The folder for what should outlive a login: `$XDG_STATE_HOME/penstock`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "penstock"


def discovery_path() -> Path:
    """Where the file is: in the login's runtime folder if there is one, else in the state folder."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(base).is_absolute() and Path(base).is_dir() and os.access(base, os.W_OK):
        return Path(base) / "penstock" / "dashboard.json"
    return state_home() / "dashboard.json"


def read() -> Discovery | None:
    """The dashboard that runs now, or None. A file that others own or may write is not believed."""
    path = discovery_path()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            found = msgspec.json.decode(file.read(65536), type=Discovery)
    except (OSError, msgspec.DecodeError):
        return None
    return found if _lives(found.pid) else None


def write(discovery: Discovery) -> Path:
    """Announce a dashboard. The file appears whole or not at all, readable by its owner only."""
    path = discovery_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".dashboard-")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(discovery))
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def remove(pid: int) -> None:
    """Withdraw the announcement, if it is still the one that process `pid` made."""
    path = discovery_path()
    with contextlib.suppress(OSError, msgspec.DecodeError):
        if msgspec.json.decode(path.read_bytes(), type=Discovery).pid == pid:
            path.unlink()


def _lives(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
