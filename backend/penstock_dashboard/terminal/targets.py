"""How loaders are called on the command line: RUN, RUN/LOADER, RUN/RANK/LOADER, or the API's run:rank:name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.protocol import LoaderRow, loader_id

_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Target:
    """Which loaders are meant, as somebody typed it."""

    run: str
    rank: int | None = None
    """None: all ranks."""
    name: str | None = None
    """None: all loaders."""

    @property
    def id(self) -> str | None:
        """The API's id, if this is exactly one loader."""
        if self.rank is None or self.name is None:
            return None
        return loader_id(self.run, self.rank, self.name)

    def matches(self, row: LoaderRow) -> bool:
        identity = row.identity
        return identity.run == self.run and self.rank in (None, identity.rank) and self.name in (None, identity.name)

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.run, self.rank, self.name) if part is not None)


def parse(text: str) -> Target:
    """For argparse."""
    parts = text.split(":") if ":" in text else text.split("/")
    if ":" in text and len(parts) != 3:
        raise argparse.ArgumentTypeError(f"“{text}” is not run:rank:name")
    run, name, rank = parts[0], parts[-1], parts[1] if len(parts) == 3 else None
    right = len(parts) <= 3 and _LABEL.fullmatch(run) and _LABEL.fullmatch(name)
    if not right or (rank is not None and not re.fullmatch(r"\d{1,6}", rank)):
        raise argparse.ArgumentTypeError(f"“{text}” is not RUN, RUN/LOADER, RUN/RANK/LOADER or run:rank:name")
    return Target(run, None if rank is None else int(rank), name if len(parts) > 1 else None)


def name_of(row: LoaderRow) -> str:
    """What a person would type for this loader."""
    identity = row.identity
    rank = f"{identity.rank}/" if identity.world_size > 1 or identity.rank else ""
    return f"{identity.run}/{rank}{identity.name}"


def not_found(target: Target, rows: Iterable[LoaderRow]) -> str:
    """The message for a target that matches nothing, with what was perhaps meant first."""
    words = {target.run, target.name}
    ranked = sorted(rows, key=lambda row: (-len(words & {row.identity.run, row.identity.name}), name_of(row)))
    if not ranked:
        return f"no loader {target}; none has reported to this dashboard yet"
    shown = ", ".join(name_of(row) for row in ranked[:8])
    more = f" and {len(ranked) - 8} more (`penstock status` lists them)" if len(ranked) > 8 else ""
    return f"no loader {target}; there is {shown}{more}"
