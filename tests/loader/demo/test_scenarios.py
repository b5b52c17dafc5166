"""Every scenario makes its point, seen as the dashboard's page sees it."""

from __future__ import annotations

from typing import Any

from tests.backend.harness import until
from tests.loader.demo.conftest import Demo, waiting


def test_starved_waits_for_data_until_there_are_more_workers(demo: Demo) -> None:
    with demo("starved") as run:
        first = run.snapshot(3)
        before = waiting(first, run.snapshot(first["batches"] + 12))
        assert before > 0.35
        (command,) = run.resize(6)
        assert run.reach(command, "applied")["actual"] == 6
        resized = run.snapshot(run.snapshot()["batches"] + 6)
        after = waiting(resized, run.snapshot(resized["batches"] + 25))
        assert after < 0.75 * before


def test_balanced_mostly_computes(demo: Demo) -> None:
    with demo("balanced") as run:
        first = run.snapshot(5)
        assert waiting(first, run.snapshot(first["batches"] + 20)) < 0.5


def test_skewed_stalls_behind_a_slow_sample(demo: Demo) -> None:
    with demo("skewed") as run:
        run.snapshot()
        slow = until(lambda: [stall for stall in run.events("stall") if stall["slowest_us"] > 1_000_000], "a stall")
        assert slow[0]["held_back"] > 0 and slow[0]["slowest_index"]


def test_crashing_loses_workers_and_goes_on(demo: Demo) -> None:
    with demo("crashing") as run:
        run.snapshot()
        died = until(lambda: [event for event in run.events("worker") if event["what"] == "died"], "a death")
        assert died[0]["signal"] == "SIGKILL" and died[0]["retried"]
        snapshot = run.snapshot(run.snapshot()["batches"] + 5)
        assert snapshot["recoveries"] >= 1 and snapshot["state"] == "running"


def test_pinned_sends_bytes_through_the_pin_stage(demo: Demo) -> None:
    with demo("pinned") as run:
        first = run.snapshot()
        mode, *_ = first["pin"]
        assert mode in ("mlock", "accelerator")
        later = run.snapshot(first["batches"] + 3)
        assert later["pin"][2] > first["pin"][2]


def test_iterable_keeps_a_resize_for_the_next_epoch(demo: Demo) -> None:
    with demo("iterable", "--workers", "1") as run:
        assert len(run.snapshot()["workers"]) == 1
        (command,) = run.resize(3)
        run.reach(command, "pending")
        until(lambda: run.snapshot()["pending"] == 3, "the page to say so")


def test_many_ranks_are_one_run_and_the_straggler_waits_the_most(demo: Demo) -> None:
    def stands_out() -> Any:
        waits = {row["identity"]["rank"]: 1 - row["rates"][3] for row in run.rows() if row["batch"] > 10}
        most = max(waits, key=waits.__getitem__, default=None)
        others = [share for rank, share in waits.items() if rank != most]
        return (waits, most) if len(waits) == 6 and waits[most or 0] > max(others) + 0.1 else None

    with demo("many-ranks") as run:
        waits, most = until(stands_out, "a straggler among six ranks")
        assert most == 3, waits
        assert {row["identity"]["world_size"] for row in run.rows()} == {6}
