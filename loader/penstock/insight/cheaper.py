"""What would make samples cheaper, in a verdict, where replay says that it would bring something. Pure.

Two things are looked for. Samples that cost next to nothing, so that most of their time is Python around them: without
workers, in larger batches, or all of a batch at once (`__getitems__`) they would be faster. And samples that take long
to fetch and would all fit into memory: `cached` would make each of them once.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from ..protocol import Config, Limit, Load, Snapshot, Verdict
from .replay import Replay, predict_range, why_not
from .words import figure, micros, percent, size

WORTH = 1.1
"""How many times as much as now must come of it, to be said."""
WORTH_KEEPING = 1.5
"""The same for a cache, which takes memory, and a change of the dataset."""
CHEAP = 100.0
"""µs: a sample that takes no longer, with all that is around it, is a cheap one."""
AROUND = 2.0
"""How many times as long as the sample itself that which is around it must take."""
SMALL, ALONE = 64, 1
"""Samples in a batch up to which larger ones are advised, and up to which `__getitems__` has nothing to do at once."""

_OF_SAMPLES: tuple[Limit, ...] = ("workers", "processors", "neighbours", "shared", "samples", "sampler")
"""Limits that cheaper samples may lift."""


class Cheaper:
    """What cheaper samples would bring to one loader: asked of replay once for what was recorded."""

    def __init__(self) -> None:
        self._of: tuple[Load, float] | None = None
        self._said = ""

    def add(
        self, verdict: Verdict, load: Load | None, config: Config, snapshot: Callable[[], Snapshot | None]
    ) -> Verdict:
        """The same verdict, with what is known of cheaper samples behind its advice. `snapshot`: gives the last one,
        and is asked once for what was recorded."""
        if verdict.limit not in _OF_SAMPLES or verdict.tone not in ("warn", "bad"):
            return verdict
        if load is None or why_not(load) or config.engine != "penstock" or not load.workers:
            return verdict
        named = 0.0 if verdict.line is None or verdict.line.clock != "wall" else verdict.line.share
        if self._of is None or self._of[0] is not load or self._of[1] != named:
            self._of, seen = (load, named), snapshot()
            self._said = "" if seen is None else _around(load, config, seen) or _kept(load, config, seen, named)
        return replace(verdict, advice=f"{verdict.advice} {self._said}".strip()) if self._said else verdict


def _around(load: Load, config: Config, snapshot: Snapshot) -> str:
    """Of samples that cost next to nothing; empty: they cost something, or nothing would be gained."""
    number = config.batch_size or 1
    batch = sum(blocked + processor for blocked, processor, _ in load.rows) / len(load.rows)
    whole, sample = batch / number, float(snapshot.cost.p50_us)
    around = whole - sample
    if not snapshot.cost.count or whole > CHEAP or around < AROUND * max(sample, 0.5):
        return ""
    (now,) = predict_range(load, [load.workers])
    (without,) = predict_range(load, [load.workers], saved=min(around / whole, 0.99))
    ways = []
    alone = 1.0 / (batch / 1e6 + Replay(load).turn)
    if alone >= WORTH * now.batches:
        ways.append(f"num_workers=0 would make about {figure(alone)} batches/s instead of {figure(now.batches)}")
    if without.batches >= WORTH * now.batches:
        if number <= SMALL:
            ways.append("larger batches would share it out")
        if number > ALONE:
            ways.append(f"`__getitems__` would bring up to {figure(without.batches / now.batches)} ×")
    costs = micros(sample) if sample >= 1 else "less than 1 µs"
    return f"A sample costs {costs}, Python around it {micros(around)}: {', and '.join(ways)}." if ways else ""


def _kept(load: Load, config: Config, snapshot: Snapshot, named: float) -> str:
    """Of samples that might be kept; empty: they are, they would not fit, or little would be gained.

    `named`: share of a sample's time that the line takes which the verdict has named; 0: it has named none.
    """
    if snapshot.cache is not UNSET or config.style != "map" or not config.dataset_length or not config.batch_size:
        return ""
    needed = config.dataset_length * load.batch_bytes / config.batch_size
    if not 0 < needed <= load.memory_ceiling:
        return ""
    fetch = sum(each.fetch_us for each in snapshot.workers)
    rest = sum(each.collate_us + each.send_us for each in snapshot.workers)
    if not fetch:
        return ""
    share = named or fetch / (fetch + rest)
    now, without = (predict_range(load, [load.workers], saved=saved)[0] for saved in (0.0, min(share, 0.99)))
    times = without.batches / now.batches if now.batches > 0 else 0.0
    if times < WORTH_KEEPING:
        return ""
    what = "That" if named else f"{percent(share)} of a batch's time is fetching samples, which"
    return (
        f"{what} need not be done twice if it is the same in every epoch: `cached(dataset)` would take about "
        f"{size(needed)} and bring up to {figure(times)} × from the second epoch on."
    )
