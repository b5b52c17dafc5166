"""A command in words. Nothing is called done before the loader says so."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..protocol import CommandRecord, CommandState, Phase
from .words import count, micros

OVER: frozenset[CommandState] = frozenset({"applied", "rejected", "timed_out", "superseded"})
ORDER: tuple[CommandState, ...] = (
    "accepted",
    "delivered",
    "pending",
    "superseded",
    "timed_out",
    "rejected",
    "applied",
)
MOST = 100
"""Commands that are kept."""


def told(command: CommandRecord) -> CommandRecord:
    """The same with words for how it stands now."""
    head, text = progress(command)
    return replace(command, phase=phase(command), head=head, text=text)


def phase(command: CommandRecord) -> Phase:
    if command.state == "accepted":
        return "asked"
    if command.state in OVER:
        return "done" if command.state == "applied" else "failed"
    return "under way"


def progress(command: CommandRecord, unit: str = " workers") -> tuple[str, str]:
    """(head, text), as the dashboard's control says it."""
    what, took = target(command, unit), _took(command)
    match command.state:
        case "accepted":
            return "Asked", f"{what}; on its way to the loader"
        case "delivered":
            return "Delivered", f"{what}; the loader is at it"
        case "pending":
            return "Pending", f"{what}; holds from the next epoch"
        case "applied":
            return "Applied", f"{what}{_place(command)}{took}"
        case "rejected":
            return "Rejected", f"{what}: {command.reason or 'no reason given'}"
        case "timed_out":
            return "Timed out", f"{what}: the loader did not answer{took}"
        case "superseded":
            return "Superseded", f"{what}: {command.reason or 'a newer command took its place'}"


def sentence(command: CommandRecord) -> str:
    """One line for a script's log: `2 → 6, applied at batch 5,120 after 140 ms`."""
    head, text = progress(command, unit="")
    what = target(command, unit="")
    return f"{what}, {head[0].lower()}{head[1:]}{text.removeprefix(what).replace(';', ':', 1)}"


def target(command: CommandRecord, unit: str) -> str:
    if command.action == "resize":
        to = command.workers
        if command.state == "applied" and command.actual is not None:
            to = command.actual
        goal = "?" if to is None else str(to)
        return f"{goal} workers" if command.before is None else f"{command.before} → {goal}{unit}"
    if command.action == "auto":
        return f"autotune {'on' if command.on else 'off'}"
    if command.action == "stack":
        which = command.worker
        return (
            "stacks of all workers" if which is None else f"stack of {f'worker {which}' if which >= 0 else 'training'}"
        )
    if command.action == "pause" and command.resume_after is not None:
        return f"pause for {count(command.resume_after)} s"
    if command.action == "profile":
        return "end the profile" if command.seconds == 0 else _profile(command.seconds)
    return command.action


def _profile(seconds: float | None) -> str:
    return "profile until told to end" if seconds is None else f"profile of {count(seconds)} s"


def resumes_at(commands: Iterable[CommandRecord]) -> float | None:
    """When a pause that is in force ends by itself, by the backend's clock; None if it does not."""
    held = [each for each in commands if each.action in ("pause", "resume") and each.state == "applied"]
    if not held or held[-1].action == "resume" or held[-1].resume_after is None:
        return None
    at = next((step.at for step in held[-1].transitions if step.state == "applied"), None)
    return None if at is None else at + held[-1].resume_after


def with_command(have: list[CommandRecord], record: CommandRecord) -> list[CommandRecord]:
    """Put a record into a list ordered by the moment of asking. One that is older than what we have is ignored."""
    known = next((each for each in have if each.id == record.id), None)
    if known is not None and _newness(record) < _newness(known):
        return have
    rest = [each for each in have if each.id != record.id]
    return sorted([*rest, record], key=lambda each: each.transitions[0].at if each.transitions else 0.0)[-MOST:]


def _newness(record: CommandRecord) -> tuple[int, int]:
    return len(record.transitions), ORDER.index(record.state)


def _place(command: CommandRecord) -> str:
    return f" at batch {count(command.at_batch)}" if command.at_batch is not None and command.at_batch >= 0 else ""


def _took(command: CommandRecord) -> str:
    return f" after {micros(command.took_us)}" if command.took_us > 0 else ""
