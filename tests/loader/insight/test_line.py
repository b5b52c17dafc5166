"""The line that costs most, in a verdict."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from penstock import DataLoader
from penstock.insight.judge import Judge
from penstock.insight.line import WithoutLine, in_words, with_line
from penstock.insight.load import summarize
from penstock.insight.offer import OPEN
from penstock.protocol import Config, HotLine, Limit, Snapshot, Verdict

from tests.loader.insight.flows import Flow
from tests.patience import PATIENCE
from tests.recorded.loads import recorded_loads

WALL = HotLine("wall", "Photos.decode", "/home/me/data.py", 41, 0.72, 990.0)
PROCESSOR = HotLine("processor", "augment", "/home/me/data.py", 12, 0.9, 990.0)
SEEN = Snapshot(1, 1000.0, "running", hottest=[WALL, PROCESSOR])
LOADS = {name: summarize(each.before.recording(), **each.before.more) for name, each in recorded_loads().items()}


def slow(limit: Limit = "workers") -> Verdict:
    return Verdict("bad", "Data-bound.", "s.", "a.", limit, "workers", 0.9)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("workers", "s. 72 % of a sample is Photos.decode (data.py:41)."),
        ("shared", "s. 72 % of a sample is Photos.decode (data.py:41)."),
        ("processors", "s. 90 % of a sample's computing is augment (data.py:12)."),
        ("neighbours", "s. 90 % of a sample's computing is augment (data.py:12)."),
    ],
)
def test_where_samples_are_the_limit_their_line_is_named(limit: Limit, said: str) -> None:
    verdict = with_line(slow(limit), SEEN)
    assert verdict.sentence == said
    assert verdict.line in (WALL, PROCESSOR)


@pytest.mark.parametrize("limit", ["training", "memory", "pin", "sampler", "startup", "failure", "none"])
def test_where_something_else_is_no_line_is_named(limit: Limit) -> None:
    assert with_line(slow(limit), SEEN) == slow(limit)


def test_without_a_profile_that_says_something_nothing_is_said() -> None:
    assert with_line(slow(), replace(SEEN, hottest=UNSET)) == slow()
    assert with_line(slow(), replace(SEEN, hottest=[PROCESSOR])) == slow()
    assert with_line(slow(), replace(SEEN, hottest=[replace(WALL, share=0.1)])) == slow()
    good = replace(slow(), tone="good")
    assert with_line(good, SEEN) == good


def test_an_old_profile_says_its_age() -> None:
    assert in_words(WALL, 1000.0).endswith("(data.py:41).")
    assert in_words(WALL, 990.0 + 600).endswith("(data.py:41), by the profile of 10 min ago.")


def test_replay_says_what_would_be_without_it() -> None:
    verdict = WithoutLine().add(with_line(slow(), SEEN), LOADS["sleep"])
    found = re.fullmatch(r"a\. Without it: ([\d.]+) → about ([\d.]+) batches/s\.", verdict.advice)
    assert found is not None
    now, then = map(float, found.groups())
    assert 3 < then / now < 3.8  # 1 / (1 - 0.72)
    assert WithoutLine().add(slow(), LOADS["sleep"]) == slow()
    named = with_line(slow(), SEEN)
    assert WithoutLine().add(named, None) == named
    assert WithoutLine().add(named, replace(LOADS["sleep"], seen=3)) == named
    # Training is the limit before long: no more than it can take is promised.
    most = 1e6 * len(LOADS["consumer"].turns) / sum(LOADS["consumer"].turns)
    told = re.search(r"about ([\d.]+)", WithoutLine().add(named, LOADS["consumer"]).advice)
    assert told is None or float(told[1]) <= 1.05 * most


def test_the_judge_says_it() -> None:
    judge = Judge(Config(num_workers=4))
    for snapshot in Flow().run(5, starvation=0.5):
        judge.take(replace(snapshot, hottest=[replace(WALL, at=snapshot.at)]))
    said = judge.verdict()
    assert "72 % of a sample is Photos.decode (data.py:41)." in said.sentence
    assert said.line is not None


def reads() -> None:
    time.sleep(0.005)


class Slow(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        reads()
        return index


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_real_loader_that_was_profiled_says_it_in_its_stats() -> None:
    def said(loader: Any) -> str:
        verdict = loader.stats().verdict
        if "Without it: " in verdict.advice and verdict.limit in OPEN:
            assert (verdict.workers is None) == (verdict.offer == ""), "no number is named that replay did not choose"
            assert verdict.workers is None or f" {verdict.workers} w" in f" {verdict.advice}"
        return f"{verdict.sentence} {verdict.advice}"

    with DataLoader(Slow(), 4, num_workers=1, monitor=False) as loader:
        loader.profiling(seconds=1.0)
        end = time.monotonic() + PATIENCE
        for _ in loader:
            words = said(loader)
            if "Without it: " in words:
                break
            assert time.monotonic() < end, words
    line = reads.__code__.co_firstlineno + 1
    waits = rf"\d+ % of a sample is reads \(test_line\.py:{line}\)"
    computes = r"\d+ % of a sample's computing is \S+ \(test_line\.py:\d+\)"  # where others take the processors
    assert re.search(waits, words) or re.search(computes, words), words
