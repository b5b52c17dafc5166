"""What cheaper samples would bring, in a verdict."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from penstock.insight.cheaper import Cheaper
from penstock.insight.evidence import Evidence
from penstock.insight.load import summarize
from penstock.insight.numbers import KINDS
from penstock.insight.verdict import weigh
from penstock.protocol import CacheUse, Config, HotLine, Load, SampleCost, Snapshot, Verdict, Worker

from tests.loader.insight.flows import Flow
from tests.recorded.loads import recorded_loads

SLOW = Verdict("bad", "Data-bound.", "s", "a.", "workers", "workers", 0.9)
LOADS = {name: summarize(each.before.recording(), **each.before.more) for name, each in recorded_loads().items()}
SLEEP, COMPUTING = LOADS["sleep"], LOADS["processor"]
CONFIG = Config(style="map", dataset_length=1_000_000, batch_size=4)


def snapshot(*, sample_us: int = 5000, fetch_us: int = 95, cache: CacheUse | None = None) -> Snapshot:
    (seen,) = list(Flow().run(0.2, starvation=0.5))[:1]
    worker = Worker(id=0, pid=1, state="fetching", fetch_us=fetch_us, collate_us=3, send_us=2)
    seen = replace(seen, workers=[worker], cost=SampleCost(100, sample_us, sample_us, sample_us, sample_us))
    return seen if cache is None else replace(seen, cache=cache)


def said(load: Load, config: Config = CONFIG, seen: Snapshot | None = None, verdict: Verdict = SLOW) -> str:
    told = Cheaper().add(verdict, load, config, lambda: seen or snapshot())
    assert (told.sentence, told.offer, told.workers) == (verdict.sentence, verdict.offer, verdict.workers)
    assert told.advice.startswith(verdict.advice)
    return told.advice.removeprefix(verdict.advice).strip()


def test_samples_that_would_fit_might_be_kept() -> None:
    load = replace(SLEEP, batch_bytes=4 * 3100, memory_ceiling=10**10)
    words = said(load)
    assert re.fullmatch(
        r"95 % of a batch's time is fetching samples, which need not be done twice if it is the same in every epoch: "
        r"`cached\(dataset\)` would take about 3\.10 GB and bring up to \d+(\.\d+)? × from the second epoch on\.",
        words,
    ), words
    times = re.search(r"([\d.]+) ×", words)
    assert times and 3 < float(times[1]) < 25


def test_with_a_profile_what_is_named_is_what_would_be_saved() -> None:
    line = HotLine(share=0.6, function="decode", file="data.py", line=41, clock="wall", at=1.0)
    words = said(replace(SLEEP, batch_bytes=4 * 3100, memory_ceiling=10**10), verdict=replace(SLOW, line=line))
    assert words.startswith("That need not be done twice")
    times = re.search(r"([\d.]+) ×", words)
    assert times and float(times[1]) == pytest.approx(2.5, rel=0.15), "without 60 % of it"


def test_what_would_not_fit_or_is_kept_already_or_brings_nothing_is_not_said() -> None:
    load = replace(SLEEP, batch_bytes=4 * 3100, memory_ceiling=10**10)
    assert said(load)
    assert not said(replace(load, memory_ceiling=10**9))
    assert not said(load, seen=snapshot(cache=CacheUse()))
    assert not said(load, seen=snapshot(fetch_us=1)), "most of a batch's time is not its samples'"
    assert not said(load, replace(CONFIG, style="iterable"))
    assert not said(load, replace(CONFIG, dataset_length=None))
    assert not said(load, verdict=replace(SLOW, limit="training", tone="good"))
    assert not said(load, verdict=replace(SLOW, limit="pin"))
    assert not said(replace(LOADS["consumer"], batch_bytes=4 * 3100, memory_ceiling=10**10)), (
        "training would not take more"
    )


def cheap(load: Load, batch_us: int) -> Load:
    """The same with batches of that many µs that only compute, and a training that takes nothing of its own."""
    return replace(
        load, rows=[(0, batch_us, 0)] * 8, turns=[1] * 16, inside_us=5, training_us=6, measured=[], others=0.0
    )


@pytest.mark.parametrize(
    ("number", "around", "ways"), [(1, 45, ("larger",)), (16, 5, ("larger", "getitems")), (256, 5, ("getitems",))]
)
def test_python_around_cheap_samples_is_named(number: int, around: int, ways: tuple[str, ...]) -> None:
    load, config = cheap(COMPUTING, (1 + around) * number), replace(CONFIG, batch_size=number)
    words = said(load, config, snapshot(sample_us=1))
    assert words.startswith(f"A sample costs 1 µs, Python around it {around} µs: "), words
    assert ("larger batches would share it out" in words) == ("larger" in ways)
    assert ("`__getitems__` would bring up to" in words) == ("getitems" in ways)
    assert "num_workers=0" not in words, "two workers bring nearly twice as much"


def test_no_workers_are_advised_where_they_bring_less_than_none() -> None:
    load = replace(cheap(COMPUTING, 60), measured=[(2, 8000.0, 0.01)])
    words = said(load, replace(CONFIG, batch_size=10), snapshot(sample_us=1))
    assert re.search(r"num_workers=0 would make about 15,\d\d\d batches/s instead of 8,\d\d\d", words), words


def test_samples_that_cost_something_are_not_cheap() -> None:
    assert "around it" not in said(cheap(COMPUTING, 4 * 6), seen=snapshot(sample_us=5))
    assert "around it" not in said(SLEEP)


@pytest.mark.parametrize(("batches", "advice"), [(20, "num_workers=1 or more"), (20_000, "`__getitems__`")])
def test_a_batch_that_training_makes_at_once_needs_no_worker(batches: int, advice: str) -> None:
    shares = {kind.name: 0.0 for kind in KINDS} | {"compute": 0.2, "starvation": 0.8}
    evidence = Evidence("Lately", 1.0, shares, batches, batches, 0, 0.0)
    seen = replace(snapshot(), workers=[])
    assert advice in weigh(evidence, seen, Config()).advice
