"""A run as a whole: its totals, and which of its ranks holds back the others. Pure.

Ranks that train together take their steps together: at the end of each they wait for the slowest. Whoever waits for
data longest is therefore waited for by all the others, whose own waiting stays small and whose time between two batches
grows; so the rank whose share of waiting stands out is the one to look at. Why it waits is seen beside the others: what
a batch costs its workers, on a processor, waiting for one, and blocked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..protocol import LoaderRow, Rates, RunChange, RunSummary, Verdict
from .shares import of_rates
from .shares import waiting as waiting_share
from .words import count, figure, percent, plural

FEWEST = 2
"""Ranks that must run for one of them to stand out."""
STANDS_OUT = 0.1
"""Share of the time by which a rank must wait longer than the median to be named,"""
HALF_AGAIN = 1.5
"""and how many times as long."""
NEARLY = 0.75
"""Share of the longest wait from which on a rank waits nearly as long."""
LONGER = 1.4
"""How many times as much a batch must cost its workers for that to be the reason."""
SEVERE = 0.3
"""Share of waiting from which on it is the main problem."""


class Rank(NamedTuple):
    """A loader of a run that is at work."""

    row: LoaderRow
    waiting: float
    """Share of the time in which it keeps its training waiting, 0 to 1."""


class Member(NamedTuple):
    """What a run as a whole needs to know of one of its loaders: worked out when its row changes."""

    rank: int
    """The number of its rank."""
    at_work: Rank | None
    """None: it does not run."""


class Ratio(NamedTuple):
    """How one rank compares with the others."""

    mine: float
    theirs: float

    @property
    def times(self) -> float:
        return self.mine / self.theirs if self.theirs > 0 else 0.0


def member(row: LoaderRow) -> Member:
    return Member(row.identity.rank, at_work(row))


def summary(run: str, members: Collection[Member]) -> RunSummary:
    """Totals over all loaders of a run, for training and for validation alike, and the verdict on it."""
    ranks = [each.at_work for each in members if each.at_work is not None]
    worst, verdict = judge(ranks)
    rates = [rank.row.rates for rank in ranks]
    return RunSummary(
        run=run,
        loaders=len(members),
        running=len(ranks),
        ranks=len({each.rank for each in members}),
        batches=sum(rate.batches for rate in rates),
        samples=sum(rate.samples for rate in rates),
        bytes=sum(rate.bytes for rate in rates),
        waiting=sum(rank.waiting for rank in ranks) / len(ranks) if ranks else None,
        holding="" if worst is None else worst.row.id,
        verdict=verdict,
    )


def at_work(row: LoaderRow) -> Rank | None:
    """The row as a rank that runs; None: it does not, or nothing is known of its time."""
    if row.presence != "connected" or row.state != "running":
        return None
    shares = of_rates(row.rates)
    return None if shares is None else Rank(row, waiting_share(shares))


def judge(ranks: Sequence[Rank]) -> tuple[Rank | None, Verdict]:
    """Which rank holds back the others, if one does, and what is to be said of the run. Loaders of different names are
    not compared with each other: one trains, another validates."""
    found: tuple[Rank, list[Rank]] | None = None
    for name in {rank.row.identity.name for rank in ranks}:
        same = sorted((rank for rank in ranks if rank.row.identity.name == name), key=lambda rank: rank.waiting)
        worst, middle = same[-1], same[(len(same) - 1) // 2].waiting
        out = worst.waiting >= max(middle + STANDS_OUT, middle * HALF_AGAIN)
        if len(same) >= FEWEST and out and (found is None or worst.waiting > found[0].waiting):
            found = worst, same
    if found is None:
        return None, Verdict()
    worst, same = found
    return worst, _held_back(worst, [rank for rank in same if rank is not worst])


def _held_back(worst: Rank, others: list[Rank]) -> Verdict:
    row, middle = worst.row, others[len(others) // 2].waiting
    who = f"Rank {count(row.identity.rank)}" + (f" on {row.identity.host}" if row.identity.host else "")
    why, advice = _why(row, [rank.row for rank in others])
    whom = "the other" if len(others) == 1 else f"all {count(len(others))} others"
    seen = f"It waits {percent(worst.waiting)} of the time for data, the median rank {percent(middle)}."
    same = [rank for rank in others if rank.waiting >= max(middle + STANDS_OUT, NEARLY * worst.waiting)]
    more = f" {plural(len(same), 'more rank waits', 'more ranks wait')} nearly as long." if same else ""
    return Verdict(
        "bad" if worst.waiting >= SEVERE else "warn",
        "One rank holds back the others." if not same else "Some ranks hold back the others.",
        f"{who} holds back {whom}{f': {why}' if why else ''}. {seen}{more}",
        advice,
        row.verdict.limit,
        row.verdict.stage,
        worst.waiting,
    )


def _why(row: LoaderRow, others: list[LoaderRow]) -> tuple[str, str]:
    """What is different about this rank, and what to do about it; empty: nothing that can be seen."""
    workers = Ratio(row.workers, _median([float(each.workers) for each in others]))
    if workers.mine > 0 and workers.times <= 1 / LONGER:
        return (
            f"it has {plural(row.workers, 'worker')}, the others {figure(workers.theirs)}",
            f"Give it as many: `penstock resize {row.identity.run}/{row.identity.rank}/{row.identity.name} "
            f"{int(workers.theirs)}`.",
        )
    costs = {
        name: Ratio(_each(row.rates, name), _median([_each(each.rates, name) for each in others]))
        for name in ("blocked", "queued", "processor", "busy")
    }
    grown = {name: ratio.mine - ratio.theirs for name, ratio in costs.items() if name != "busy"}
    most = max(grown, key=lambda name: grown[name])
    ratio = costs[most]
    if ratio.mine <= 0 or grown[most] <= 0.2 * costs["busy"].theirs or 0 < ratio.times < LONGER:
        whole = costs["busy"]
        if whole.times >= LONGER:
            return f"a batch takes its workers {_times(whole)} as long", "Look at its dataset and its machine."
        return "", "Look at its page: what limits it is named there."
    what, advice = REASONS[most]
    many = f"takes {_times(ratio)} as long" if ratio.times else "is waited for, and the others need not"
    return f"its {what} {many}", advice


def change_in_words(change: RunChange) -> str:
    """What somebody did to a run."""
    what = {"shown": "Shown again", "pinned": "Pinned", "hidden": "Hidden", "deleted": "Deleted"}[change.change]
    having = f", with {plural(change.loaders, 'loader')}" if change.change == "deleted" else ""
    return f"{what}{having}, by {change.by}{f' ({change.origin})' if change.origin else ''}"


REASONS = {
    "blocked": ("storage", "Look at the disk or network that it reads from; the others read the same data faster."),
    "queued": ("wait for a processor", "Something else uses its processors, or it has fewer: compare the hosts."),
    "processor": ("work on a batch", "Its processors are slower, or its share of the data is heavier."),
}
"""What of a batch's cost may differ, as it is called, and what to do about it."""


def _each(rates: Rates, name: str) -> float:
    """Seconds of its workers' time that a batch takes, of one kind."""
    spent: float = getattr(rates, name)
    return spent / rates.batches if rates.batches > 0 else 0.0


def _times(ratio: Ratio) -> str:
    return f"{figure(ratio.times)} ×" if ratio.times < 100 else "over 100 ×"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
