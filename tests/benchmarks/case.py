"""What is measured, between whom, and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

Measures = Mapping[str, float]
"""What one round found: the key of a Figure → its value."""


@dataclass(frozen=True)
class Target:
    """A bound from the issues."""

    bound: float
    of: Literal["ratio", "value"] = "ratio"
    at_least: bool = True

    def met(self, value: float, ratio: float | None) -> bool | None:
        """None: there is nothing to judge."""
        judged = ratio if self.of == "ratio" else value
        if judged is None:
            return None
        return judged >= self.bound if self.at_least else judged <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'×' if self.of == 'ratio' else ''}"


@dataclass(frozen=True)
class Figure:
    """One number of a case."""

    key: str
    unit: str
    less_is_better: bool = False
    pick: Literal["best", "median", "worst"] = "best"
    """Which of the rounds counts. Work: the best, since noise only ever adds. Promises: the worst."""
    ratio: Literal["speed", "amount", "none"] = "speed"
    """speed: how many times faster than the baseline. amount: how many times as much. none: not compared."""
    target: Target | None = None

    def chosen(self, values: list[float]) -> float:
        if self.pick == "median":
            return sorted(values)[len(values) // 2]
        lowest = self.less_is_better == (self.pick == "best")
        return min(values) if lowest else max(values)

    def compared(self, value: float, baseline: float) -> float | None:
        if self.ratio == "none":
            return None
        inverted = self.ratio == "speed" and self.less_is_better
        return baseline / value if inverted else value / baseline


class Measure:
    """A function of `measures`, by name and with its settings: only the process that measures imports it."""

    def __init__(self, module: str, function: str, **settings: object) -> None:
        self._module, self._function, self._settings = module, function, settings

    def run(self, variant: str, quick: bool) -> Measures:
        module = import_module(f"tests.benchmarks.measures.{self._module}")
        found: Measures = getattr(module, self._function)(variant, quick, **self._settings)
        return found


@dataclass(frozen=True)
class Case:
    """One measurement, made in rounds by each of its variants in turn."""

    name: str
    group: str
    """What `--only` selects."""
    variants: tuple[str, ...]
    """Competitors, or settings of one."""
    measure: Measure
    figures: tuple[Figure, ...]
    baseline: str | None = None
    subjects: tuple[str, ...] = ("penstock",)
    """The variants that the targets are for."""
    timeout: float = 90.0
    """Seconds after which a round has failed."""
    on_ray: bool = False
    """Rounds start a Ray cluster: they run apart from the rest of the machine, and not where Ray is not installed."""
