"""What `penstock stack` prints: what each worker that was asked for is doing."""

from __future__ import annotations

import time

from penstock.insight.events import describe
from penstock.protocol import CommandRecord, StackEvent

from ..terminal.client import Client
from ..terminal.options import REFUSED, Failure

POLL = 0.1
"""Seconds between two looks."""
LATE = 10.0
"""Seconds after which what was asked for is no longer waited for."""


def wait_for(client: Client, command: CommandRecord) -> str:
    """The stacks that a command asked for, when they are there."""
    until = time.monotonic() + LATE
    while time.monotonic() < until:
        events = [stored.event for stored in client.stacks(command.loader)]
        mine = [each for each in events if isinstance(each, StackEvent) and each.command == command.id]
        if mine and len(mine) >= mine[0].among:
            return "\n\n".join(f"{describe(each)}\n{each.stack}".strip() for each in sorted(mine, key=_place))
        time.sleep(POLL)
    raise Failure(REFUSED, f"{command.loader}: the stacks did not come")


def _place(event: StackEvent) -> int:
    return event.place
