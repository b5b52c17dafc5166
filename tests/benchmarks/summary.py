"""From rounds to results: which round counts, how it compares, and whether the target is met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.benchmarks.case import Case, Figure
from tests.benchmarks.rounds import Round


@dataclass(frozen=True)
class Entry:
    """What one variant reached."""

    value: float | None
    """None: every round failed."""
    ratio: float | None
    """To the baseline of the same run."""
    failures: int
    """Rounds that failed."""


@dataclass(frozen=True)
class Result:
    """One figure of one case."""

    case: Case
    figure: Figure
    entries: dict[str, Entry]
    met: bool | None
    """None: there is no target, or nothing to judge by it."""

    def as_dict(self) -> dict[str, object]:
        return {
            "case": self.case.name,
            "figure": self.figure.key,
            "unit": self.figure.unit,
            "pick": self.figure.pick,
            "target": str(self.figure.target) if self.figure.target else None,
            "met": self.met,
            "entries": {variant: vars(entry) for variant, entry in self.entries.items()},
        }


def summarise(case: Case, rounds: Iterable[Round]) -> list[Result]:
    by_variant: dict[str, list[Round]] = {}
    for turn in rounds:
        by_variant.setdefault(turn.variant, []).append(turn)
    return [result(case, figure, by_variant) for figure in case.figures]


def result(case: Case, figure: Figure, rounds: dict[str, list[Round]]) -> Result:
    values = {variant: value_of(figure, turns) for variant, turns in rounds.items()}
    baseline = values.get(case.baseline) if case.baseline else None
    entries = {}
    for variant, value in values.items():
        ratio = figure.compared(value, baseline) if value and baseline else None
        failures = sum(turn.measures is None for turn in rounds[variant])
        entries[variant] = Entry(value, ratio if variant != case.baseline else None, failures)
    return Result(case, figure, entries, judge(case, figure, entries))


def value_of(figure: Figure, rounds: list[Round]) -> float | None:
    values = [turn.measures[figure.key] for turn in rounds if turn.measures and figure.key in turn.measures]
    return figure.chosen(values) if values else None


def judge(case: Case, figure: Figure, entries: dict[str, Entry]) -> bool | None:
    """Whether all subjects meet the target; a subject that failed in any round does not."""
    if figure.target is None:
        return None
    verdicts: list[bool] = []
    for variant in case.subjects:
        entry = entries.get(variant)
        if entry is None:
            continue
        met = None if entry.value is None else figure.target.met(entry.value, entry.ratio)
        verdicts.append(bool(met) and not entry.failures)
    return all(verdicts) if verdicts else None
