"""The verdict on a wait of training that does not end. Pure."""

from __future__ import annotations

from msgspec import UNSET

from ..protocol import Hang, Limit, Snapshot, Verdict
from .verdict import STAGES
from .words import count, duration

STUCK = 5_000_000
"""µs from which on a long wait is the main thing."""

LIMITS: dict[str, Limit] = {"startup": "startup", "pin_wait": "pin", "sampler": "sampler"}
"""Why nothing is ready → what limits; anything else: the batch itself does."""


def stuck(snapshot: Snapshot) -> Verdict | None:
    """What is said while one batch holds up everything; None: none does, or not for long."""
    hang = snapshot.hang
    if hang is UNSET or hang.us < STUCK or snapshot.state != "running":
        return None
    limit = LIMITS.get(hang.cause, "samples")
    sentence = f"Training has waited {duration(hang.us / 1e6)} for batch {count(hang.batch)}{_whose(snapshot, hang)}."
    advice = "What it is doing is shown below." if hang.worker >= 0 or not snapshot.target else ""
    return Verdict("bad", "Stuck.", sentence, advice, limit, STAGES.get(limit), 1.0)


def _whose(snapshot: Snapshot, hang: Hang) -> str:
    if hang.worker >= 0:
        found = next((each for each in snapshot.workers if each.id == hang.worker), None)
        state = "" if found is None or found.state not in ("fetching", "collating", "sending") else f" ({found.state})"
        return f", which worker {hang.worker} has{state}"
    if hang.cause == "pin_wait":
        return ", which is in the pin stage"
    if hang.cause == "startup":
        return ", the first one"
    return "" if snapshot.target else ", which it loads itself"
