"""A profile: where the time of a loader's workers goes, down to the line."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path, PurePath
from typing import get_args

from ..protocol import HotLine, ProfilePart
from . import tables
from .formats import format_for
from .parts import PartReader
from .tables import Cost, Hottest
from .tree import PHASES, ROOT, Clock, Phase, Tree

ROWS = 12
"""Functions that `print` shows."""


class Profile:
    """Where the time of a loader's workers went while they were looked at.

    `print` shows the functions that cost most; `functions`, `lines` and `hottest` say it in numbers; `save` writes a
    file for speedscope, pprof or a flame graph.
    """

    def __init__(self, name: str, began: float, rate: float) -> None:
        self.id = name
        self.began = began
        """Unix time, s."""
        self.rate = rate
        """Looks a second at each worker."""
        self.seconds = 0.0
        """For how long workers were looked at."""
        self.tree = Tree()
        self.idle: dict[int, int] = {}
        """Worker → ns in which it had nothing to do."""
        self._reader = PartReader(self.tree, self.idle)

    @classmethod
    def from_parts(cls, parts: Iterable[ProfilePart]) -> Profile:
        """The profile that these parts, in order, are of.

        Raises:
            ValueError: There are none, or they are not of one profile.
        """
        profile: Profile | None = None
        for part in parts:
            profile = profile or cls(part.profile, part.began, part.rate)
            profile.add(part)
        if profile is None:
            raise ValueError("a profile has at least one part")
        return profile

    def add(self, part: ProfilePart) -> None:
        """Put the next part to it.

        Raises:
            ValueError: It is of another profile, or one before it is missing.
        """
        if part.profile != self.id:
            raise ValueError(f"parts of two profiles, {self.id!r} and {part.profile!r}")
        self._reader.add(part)
        self.seconds = part.seconds

    @property
    def title(self) -> str:
        """For a person."""
        return f"{len(self.tree.workers())} workers, {self.seconds:.0f} s"

    def total(self, clock: Clock = "wall", phase: Phase | None = None, worker: int | None = None) -> float:
        """Seconds in which workers made batches, summed over workers."""
        return sum(self.tree.own(clock, phase, worker).values()) / 1e9

    def functions(self, clock: Clock = "wall", phase: Phase | None = None, worker: int | None = None) -> list[Cost]:
        """What each function costs, the one with the most own time first; of all phases and workers, or of one."""
        return tables.by_function(self.tree, clock, phase, worker)

    def lines(self, clock: Clock = "wall", phase: Phase | None = None, worker: int | None = None) -> list[Cost]:
        """What each line costs, the one with the most own time first; of all phases and workers, or of one."""
        return tables.by_line(self.tree, clock, phase, worker)

    def hottest(self, clock: Clock = "wall") -> Hottest | None:
        """The function of the user's own that costs most; None: none was seen."""
        return tables.hottest(self.tree, clock)

    def hot_lines(self) -> list[HotLine]:
        """The same by each clock, as it is told."""
        found = [tables.hottest(self.tree, clock) for clock in get_args(Clock)]
        at = self.began + self.seconds
        return [
            HotLine(each.clock, each.function, each.file, each.line, min(each.share, 1.0), at)
            for each in found
            if each is not None
        ]

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file whose name's ending says what it is.

        Args:
            path: `*.speedscope.json` for speedscope.app; `*.pb.gz` or `*.pprof` for pprof; `*.folded` or `*.txt` for
                flamegraph.pl and others.

        Raises:
            ValueError: The ending is none of these.
            OSError: It cannot be written.
        """
        write = format_for(str(path))
        Path(path).write_bytes(write(self))

    def __str__(self) -> str:
        total = self.total()
        if not total:
            return f"nothing was seen in {self.seconds:.1f} s: no worker made a batch"
        processor = self.total("processor")
        idle = sum(self.idle.values()) / 1e9
        phases = ", ".join(f"{phase} {self.total(phase=phase) / total:.0%}" for phase in PHASES)
        lines = [
            f"{self.title} at {self.rate:g} Hz: {total:.1f} s at work ({processor / total:.0%} of it on a processor; "
            f"{phases}), {idle:.1f} s idle",
            "    own  total  function",
        ]
        rows = [row for row in self.functions() if row.own / total >= 0.001][:ROWS]
        for row in rows:
            mark = " " if row.user else "·"
            lines.append(
                f"  {row.own / total:>5.1%}  {row.total / total:>5.1%} {mark}{row.function} "
                f"({PurePath(row.file).name}:{row.line})"
            )
        ours = self.tree.own().get(ROOT, 0) / 1e9 / total
        if ours >= 0.001:
            lines.append(f"  {ours:>5.1%}         ·(the loader itself)")
        if any(not row.user for row in rows):
            lines.append("  · is a library's")
        found = self.hottest()
        if found is not None:
            lines.append(
                f"  {found.share:.0%} is {found.function} with what it calls, most at "
                f"{PurePath(found.file).name}:{found.line}"
            )
        return "\n".join(lines)
