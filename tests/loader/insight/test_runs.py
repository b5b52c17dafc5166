"""A run as a whole: totals, and the rank that holds back the others, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.runs import member, summary
from penstock.protocol import Identity, LoaderRow, Presence, Rates, RunSummary


def row(
    rank: int, waiting: float = 0.02, name: str = "train", presence: Presence = "connected", **more: Any
) -> LoaderRow:
    """A rank whose 8 workers take 0.4 s for each of 10 batches a second, half of it blocked."""
    workers = more.pop("workers", 8)
    rates: dict[str, float] = {"batches": 10.0, "samples": 640.0, "bytes": 1e6, "busy": 4.0, "blocked": 2.0}
    rates |= {"processor": 1.8, "queued": 0.2, "compute": 1 - waiting, "starvation": waiting, **more}
    identity = Identity("run", name, rank, 2000, f"gpu-{rank // 250:02}", 1)
    return LoaderRow(
        f"run:{rank}:{name}", identity, presence, "running", 1.0, 1.0, workers=workers, rates=Rates(**rates)
    )


def whole(rows: list[LoaderRow]) -> RunSummary:
    return summary("run", [member(each) for each in rows])


def test_the_rank_whose_storage_is_slow_is_named_with_its_host() -> None:
    rows = [row(rank) for rank in range(2000)]
    rows[1731] = row(1731, waiting=0.6, busy=8.0, blocked=6.0)
    found = whole(rows)
    assert found.holding == "run:1731:train"
    assert found.verdict.tone == "bad" and found.verdict.verdict == "One rank holds back the others."
    assert found.verdict.sentence == (
        "Rank 1,731 on gpu-06 holds back all 1,999 others: its storage takes 3.00 × as long. "
        "It waits 60 % of the time for data, the median rank 2 %."
    )
    assert "disk or network" in found.verdict.advice


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"busy": 8.0, "queued": 4.2}, "its wait for a processor takes 21.0 × as long"),
        ({"busy": 8.0, "processor": 5.8}, "its work on a batch takes 3.22 × as long"),
        ({"workers": 2}, "it has 2 workers, the others 8"),
        ({"busy": 8.0, "blocked": 0.0, "processor": 0.0, "queued": 0.0}, "a batch takes its workers 2.00 × as long"),
    ],
)
def test_the_reason_is_what_differs(what: dict[str, Any], said: str) -> None:
    found = whole([*(row(rank) for rank in range(7)), row(7, waiting=0.4, **what)])
    assert said in found.verdict.sentence


def test_without_a_difference_none_is_claimed() -> None:
    found = whole([*(row(rank) for rank in range(7)), row(7, waiting=0.4)])
    assert found.verdict.sentence.startswith("Rank 7 on gpu-00 holds back all 7 others. It waits 40 %")


def test_several_that_wait_are_not_called_one() -> None:
    found = whole([*(row(rank) for rank in range(7)), row(7, waiting=0.4), row(8, waiting=0.35)])
    assert found.verdict.verdict == "Some ranks hold back the others."
    assert "1 more rank waits nearly as long." in found.verdict.sentence
    found = whole([*(row(rank) for rank in range(7)), row(7, waiting=0.6), row(8, waiting=0.3)])
    assert found.verdict.verdict == "One rank holds back the others.", "half as long is not nearly"


def test_totals_are_over_training_and_validation() -> None:
    rows = [row(rank) for rank in range(4)] + [row(rank, name="val", batches=2.0) for rank in range(4)]
    rows += [row(9, presence="lost")]
    found = whole(rows)
    assert (found.loaders, found.running, found.ranks) == (9, 8, 5)
    assert (found.batches, found.samples, found.bytes) == (48.0, 8 * 640.0, 8e6)
    assert found.waiting == pytest.approx(0.02) and found.holding == "" and found.verdict.sentence == ""


def test_a_validation_loader_is_not_compared_with_training() -> None:
    rows = [row(rank) for rank in range(8)] + [row(rank, name="val", waiting=0.9) for rank in range(8)]
    assert whole(rows).holding == ""


@given(st.lists(st.floats(0.0, 1.0), min_size=0, max_size=1))
def test_alone_none_stands_out(waits: list[float]) -> None:
    found = whole([row(rank, waiting) for rank, waiting in enumerate(waits)])
    assert found.holding == "" and (found.waiting is None) == (not waits)


def test_two_ranks_are_enough() -> None:
    found = whole([row(0), row(1, waiting=0.6)])
    assert found.holding == "run:1:train"
    assert "holds back the other" in found.verdict.sentence
    assert whole([row(0, waiting=0.55), row(1, waiting=0.6)]).holding == ""


@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=50))
def test_whoever_is_named_waits_longest_and_others_do_not(waits: list[float]) -> None:
    found = whole([row(rank, waiting) for rank, waiting in enumerate(waits)])
    if found.holding:
        worst, middle = max(waits), sorted(waits)[(len(waits) - 1) // 2]
        assert waits[int(found.holding.split(":")[1])] == pytest.approx(worst)
        assert worst >= middle + 0.099
