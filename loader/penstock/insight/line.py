"""The line that costs most, in a verdict: which it is, by the last profile, and what would be without it. Pure.

A profile is of the past. It is named for as long as the loader lives, with its age once that is more than a moment.
"""

from __future__ import annotations

from pathlib import PurePath

from msgspec import UNSET
from msgspec.structs import replace

from ..protocol import HotLine, Limit, Load, Snapshot, Verdict
from .replay import predict_range
from .words import figure, percent

WORTH_NAMING = 0.2
"""Share of a sample's time from which on one function is worth naming."""
WORTH = 1.1
"""How many times as much as now must come without it, to be promised."""
FRESH = 120.0
"""Seconds for which a profile counts as one of now."""

_COMPUTING: tuple[Limit, ...] = ("processors", "neighbours")
_WORKING: tuple[Limit, ...] = ("workers", "shared", *_COMPUTING)
"""Limits that cheaper samples would lift."""


def with_line(verdict: Verdict, snapshot: Snapshot) -> Verdict:
    """The same verdict; where what samples take is the limit, with the line that takes most of it."""
    if verdict.limit not in _WORKING or verdict.tone not in ("warn", "bad") or snapshot.hottest is UNSET:
        return verdict
    clock = "processor" if verdict.limit in _COMPUTING else "wall"
    line = next((each for each in snapshot.hottest if each.clock == clock), None)
    if line is None or line.share < WORTH_NAMING:
        return verdict
    return replace(verdict, sentence=f"{verdict.sentence} {in_words(line, snapshot.at)}".strip(), line=line)


def in_words(line: HotLine, now: float) -> str:
    """`now`: Unix time, s."""
    what = "a sample" if line.clock == "wall" else "a sample's computing"
    age = now - line.at
    when = f", by the profile of {max(1, round(age / 60))} min ago" if line.at and age > FRESH else ""
    return f"{percent(line.share)} of {what} is {line.function} ({PurePath(line.file).name}:{line.line}){when}."


class WithoutLine:
    """What would come if the line that is named cost nothing: asked of replay once for what was recorded."""

    def __init__(self) -> None:
        self._of: tuple[Load, float] | None = None
        self._said = ""

    def add(self, verdict: Verdict, load: Load | None) -> Verdict:
        """The same verdict, with what replay says of it, if it names a line."""
        line = verdict.line
        if line is None or load is None:
            return verdict
        if self._of is None or self._of[0] is not load or self._of[1] != line.share:
            self._of, self._said = (load, line.share), _brings(load, line.share)
        return replace(verdict, advice=f"{verdict.advice} {self._said}".strip()) if self._said else verdict


def _brings(load: Load, share: float) -> str:
    now, without = (predict_range(load, [load.workers], saved=saved)[0] for saved in (0.0, share))
    if not now.enough or without.batches < WORTH * now.batches:
        return ""
    return f"Without it: {figure(now.batches)} → about {figure(without.batches)} batches/s."
