"""How adoption travels to child processes: by two variables, as they do whatever starts them.

`PYTHONPATH` leads to `startup/sitecustomize.py`, which Python runs before anything else. `PENSTOCK_AUTO` says that it
is meant, and how: words between commas. No torch here, and nothing that takes long: every Python process below a
training reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping

VARIABLE = "PENSTOCK_AUTO"
# Without pathlib, which takes longer to load than all of this.
STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")  # noqa: PTH100, PTH118, PTH120

OFF = frozenset({"", "0", "no", "off", "false"})
NO_DASHBOARD = "no-dashboard"
READ_ONLY = "read-only"
AUTOTUNE = "autotune"


def _words() -> frozenset[str]:
    return frozenset(word.strip().lower() for word in os.environ.get(VARIABLE, "").split(","))


def is_on() -> bool:
    return not _words() <= OFF


def wants_dashboard() -> bool:
    """Is the local dashboard to be found or started for loaders that were not told where to publish?"""
    return is_on() and NO_DASHBOARD not in _words()


def is_read_only() -> bool:
    """May nobody pause or resize loaders from the dashboard?"""
    return is_on() and READ_ONLY in _words()


def wants_autotune() -> bool:
    """Are loaders to find their number of workers themselves?"""
    return is_on() and AUTOTUNE in _words() and not is_read_only()


def spread(environment: MutableMapping[str, str], words: Iterable[str] = ()) -> None:
    """Have Python processes that are started with this environment adopt Penstock."""
    environment[VARIABLE] = ",".join(["on", *words])
    entries = environment.get("PYTHONPATH", "")
    if STARTUP not in entries.split(os.pathsep):
        environment["PYTHONPATH"] = STARTUP + (os.pathsep + entries if entries else "")
