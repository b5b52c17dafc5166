"""Every scenario makes its point, seen as the dashboard's page sees it."""

from __future__ import annotations

from penstock.demo.scenarios import SCENARIOS, Scenario

from tests.backend.harness import until
from tests.loader.demo.conftest import Demo, waited


def seconds_a_batch(scenario: Scenario, workers: int) -> float:
    """How long so many workers wait for the storage, for each batch: what the machine does beside does not matter."""
    slow = scenario.slow_share
    return scenario.batch_size * ((1 - slow) * scenario.wait + slow * scenario.slow_wait) / workers


def test_starved_waits_for_data_until_there_are_more_workers(demo: Demo) -> None:
    starved = SCENARIOS["starved"]
    assert seconds_a_batch(starved, starved.workers) > 1.5 * starved.step > 1.5 * seconds_a_batch(starved, 6)
    with demo("starved") as run:
        first = run.snapshot(3)
        assert first["target"] == starved.workers
        assert waited(first, run.snapshot(first["batches"] + 12)) > 0
        (command,) = run.resize(6)
        assert run.reach(command, "applied")["actual"] == 6
        until(lambda: run.snapshot()["target"] == 6, "the page to say so")


def test_balanced_mostly_computes(demo: Demo) -> None:
    balanced = SCENARIOS["balanced"]
    assert seconds_a_batch(balanced, balanced.workers) < 0.5 * balanced.step
    with demo("balanced") as run:
        first = run.snapshot(5)
        later = run.snapshot(first["batches"] + 20)
        computed = later["times"]["compute_us"] - first["times"]["compute_us"]
        assert computed >= 19 * balanced.step * 1e6, "as long as its steps take"


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
        assert first["pin"]["mode"] in ("mlock", "accelerator")
        later = run.snapshot(first["batches"] + 3)
        assert later["pin"]["bytes"] > first["pin"]["bytes"]


def test_iterable_keeps_a_resize_for_the_next_epoch(demo: Demo) -> None:
    with demo("iterable", "--workers", "1") as run:
        assert len(run.snapshot()["workers"]) == 1
        (command,) = run.resize(3)
        run.reach(command, "pending")
        until(lambda: run.snapshot()["pending"] == 3, "the page to say so")


def test_remote_has_one_processor_and_adds_workers_on_others(demo: Demo) -> None:
    with demo("remote") as run:
        first = run.snapshot(3)
        assert first["processors"]["allowed"] == 1
        assert [machine["workers"] for machine in first["machines"] if machine["workers"]] == []
        (command,) = run.resize(3)
        run.reach(command, "applied")

        def there() -> list[int]:
            return sorted(number for machine in run.snapshot()["machines"] for number in machine["workers"])

        until(lambda: there() == [1, 2], "two of them there")
        until(lambda: all(each["batches"] for each in run.snapshot()["workers"]), "a batch of each")


def test_many_ranks_are_one_run_and_the_straggler_waits_the_most(demo: Demo) -> None:
    def stands_out() -> bool:
        waits = {row["identity"]["rank"]: 1 - row["rates"]["compute"] for row in run.rows() if row["batch"] > 10}
        others = [share for rank, share in waits.items() if rank != SCENARIOS["many-ranks"].straggler]
        return len(waits) == 6 and waits[3] > max(others) + 0.1

    with demo("many-ranks") as run:
        until(stands_out, "a straggler among six ranks")
        assert {row["identity"]["world_size"] for row in run.rows()} == {6}
