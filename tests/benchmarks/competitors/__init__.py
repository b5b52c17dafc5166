"""One module a competitor, each with `open(plan)`: an iterable that gives one epoch of batches per iteration.

Nothing is imported until a competitor is used, so that those that are not installed do no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from tests.benchmarks.competitors.plan import Plan


class Opener(Protocol):
    def open(self, plan: Plan) -> Iterable[Any]: ...

    def version(self) -> str: ...


@dataclass(frozen=True)
class Competitor:
    name: str
    title: str
    keeps_workers: bool
    """Whether its workers outlive an epoch. Where they do not, the clock starts only when each of
    them had time for two batches, which leaves their start-up out and is a little in their favour."""

    def opener(self) -> Opener:
        return cast(Opener, import_module(f"{__name__}.{self.name}_adapter"))


COMPETITORS = {
    competitor.name: competitor
    for competitor in (
        Competitor("torch", "torch", keeps_workers=True),
        Competitor("penstock", "penstock", keeps_workers=True),
        Competitor("threads", "penstock threads", keeps_workers=True),
        Competitor("torchdata", "torchdata nodes", keeps_workers=False),
        Competitor("grain", "Grain", keeps_workers=False),
        Competitor("spdl", "SPDL threads", keeps_workers=False),
    )
}
