"""What `penstock profile` does when the loader has begun: wait for the parts, show and save them."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.profiling.formats import format_for
from penstock.profiling.profile import Profile
from penstock.protocol import CommandRecord, ProfilePart, label

from ..terminal.client import Client
from ..terminal.options import REFUSED, Failure

POLL = 0.25
"""Seconds between two looks for parts."""
LATE = 20.0
"""Seconds after a profile's time at which its end is no longer waited for."""


def check_output(name: str | None) -> None:
    """Complain of a file's name before anything is asked for."""
    if name is not None:
        try:
            format_for(name)
        except ValueError as error:
            raise Failure(REFUSED, str(error)) from None


def wait_for(client: Client, command: CommandRecord, seconds: float) -> Profile:
    """The profile that a command has begun, when it has ended."""
    parts: dict[int, ProfilePart] = {}
    after, until = 0, time.monotonic() + seconds + LATE
    while time.monotonic() < until:
        for stored in client.profile_parts(command.loader, after):
            after = stored.id
            if isinstance(stored.event, ProfilePart) and stored.event.profile == command.id:
                parts[stored.event.part] = stored.event
        if any(part.ended for part in parts.values()):
            return Profile.from_parts(part for _, part in sorted(parts.items()))
        time.sleep(POLL)
    raise Failure(REFUSED, f"{command.loader}: the profile did not come to its end")


def output_for(name: str, loader: str, several: bool) -> Path:
    """Where the profile of one loader goes: if there are several, each has a file with its name in it."""
    path = Path(name)
    return path.with_name(f"{label(loader)}-{path.name}") if several else path
