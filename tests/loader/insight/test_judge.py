"""What is said of a training whose truth is known. No process is started: counters grow as a test says."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from penstock.insight.judge import Judge
from penstock.insight.numbers import KINDS, NUMBERS
from penstock.insight.verdict import LIMITS, STAGES
from penstock.pool.observer import Cause
from penstock.protocol import (
    Config,
    EpochEvent,
    Errors,
    Limit,
    Queues,
    Rates,
    Snapshot,
    Stall,
    Times,
    Verdict,
    WorkerEvent,
)

from tests.loader.insight.flows import Flow

CONFIG = Config(num_workers=4, max_workers=32)
FULL = Queues(index=0, in_flight=16, window=16)
ROOM = Queues(index=0, in_flight=2, window=16)


def heard(judge: Judge, snapshots: Iterable[Snapshot]) -> list[Verdict]:
    said = []
    for snapshot in snapshots:
        judge.take(snapshot)
        said.append(judge.verdict())
    return said


def limits(said: list[Verdict]) -> list[Limit]:
    """What was named, without repetitions and without the silence before enough was seen."""
    named = [each.limit for each in said if each.limit != "none"]
    return [limit for place, limit in enumerate(named) if place == 0 or named[place - 1] != limit]


def test_one_table() -> None:
    """Kinds of time, rates and limits are listed once; what else lists them says the same."""
    assert [kind.name for kind in KINDS] == [cause.name.lower() for cause in Cause]
    assert tuple(f"{kind.name}_us" for kind in KINDS) == Times.__struct_fields__
    assert sorted(number.name for number in NUMBERS) == sorted(Rates.__struct_fields__)
    assert set(LIMITS) == set(get_args(Limit))
    assert set(STAGES) <= set(LIMITS)


@pytest.mark.parametrize(
    ("limit", "flow"),
    [
        ("training", {"busy": 0.3}),
        ("training", {"busy": 0.95, "starvation": 0.02}),
        ("workers", {"starvation": 0.5}),
        ("workers", {"starvation": 0.2, "reorder_stall": 0.3}),
        ("workers", {"reorder_stall": 0.5, "busy": 0.99}),
        ("workers", {"pin_wait": 0.5, "busy": 0.99}),
        ("samples", {"reorder_stall": 0.4, "busy": 0.4}),
        ("pin", {"pin_wait": 0.4, "busy": 0.4}),
        ("sampler", {"sampler": 0.4, "busy": 0.4}),
        ("sampler", {"starvation": 0.4, "busy": 0.3, "queues": ROOM}),
        ("memory", {"starvation": 0.4, "busy": 0.3, "queues": FULL}),
    ],
)
def test_the_limit_is_named_within_two_seconds_and_kept(limit: Limit, flow: dict[str, float]) -> None:
    said = heard(Judge(CONFIG), Flow().run(30, **flow))  # type: ignore[arg-type]
    assert limits(said) == [limit]
    assert said[9].limit == limit
    assert said[-1].stage == STAGES[limit]


def test_too_little_is_said_to_be_too_little() -> None:
    said = heard(Judge(CONFIG), Flow().run(0.6, starvation=0.5))
    assert said[-1].verdict == "Measuring."
    assert said[-1].limit == "none"


@given(st.integers(0, 2**32), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@example(0, 0.060546875, 0.0)  # at the edge from which on data is named after training was
@example(0, 0.04, 0.0)  # and the other way round
@example(0, 0.5, 0.82)
@example(0, 0.5, 0.78)
def test_a_steady_load_gets_one_verdict(seed: int, waiting: float, busy: float) -> None:
    """However near it is to the edge between two: noise does not make it change its mind back and forth."""
    noise, flow, judge = random.Random(seed), Flow(), Judge(CONFIG)
    said = []
    for _ in range(200):
        share = min(1.0, max(0.0, waiting + noise.gauss(0, 0.05 * (1 - waiting) * waiting)))
        load = min(1.0, max(0.0, busy + noise.gauss(0, 0.02)))
        said += heard(judge, flow.run(0.2, busy=load, starvation=share, rate=40 + noise.random()))
    assert len(limits(said)) <= 2  # the first second may mislead it
    assert len(limits(said[25:])) == 1


@given(st.lists(st.sampled_from(["wait", "compute", "resize", "pause", "epoch", "skip", "die", "end"]), max_size=40))
def test_whatever_happens_something_is_said(happenings: list[str]) -> None:
    flow, judge = Flow(), Judge(CONFIG)
    for happening in happenings:
        flow.state = "running"
        match happening:
            case "wait":
                heard(judge, flow.run(1, starvation=0.9))
            case "compute":
                heard(judge, flow.run(1, busy=0.1))
            case "resize":
                flow.resize(1 + flow.workers % 7)
            case "pause":
                flow.state = "paused"
                heard(judge, flow.run(1, paused=1.0, rate=0, busy=0))
            case "epoch":
                flow.next_epoch()
            case "skip":
                flow.at += 60
            case "die":
                flow.first_pid += 1
                flow.recoveries += 1
            case "end":
                flow.state = "finished"
        (said,) = heard(judge, [flow.snapshot()])
        assert said.verdict
        assert said.sentence
        assert said.limit in get_args(Limit)
        assert said.waiting is None or 0 <= said.waiting <= 1


def test_after_a_resize_nothing_is_said_of_the_pool_before() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    heard(judge, flow.run(12, starvation=0.6))
    flow.resize(16)
    said = heard(judge, flow.run(3, busy=0.4))
    assert [each.verdict for each in said[:3]] == ["Measuring."] * 3
    assert limits(said) == ["training"]
    assert "waited 0 %" in said[-1].sentence


def test_a_pause_is_not_the_datas_fault_and_is_forgotten() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    heard(judge, flow.run(12, busy=0.6))
    flow.state = "paused"
    assert {each.verdict for each in heard(judge, flow.run(5, rate=0, busy=0, paused=1.0))} == {"Paused."}
    flow.state = "running"
    assert limits(heard(judge, flow.run(4, starvation=0.5))) == ["workers"]


def test_batches_that_were_buffered_do_not_hide_that_workers_are_too_slow() -> None:
    """After a pause, training lives on what was made before it and does not wait; soon it will."""
    said = heard(Judge(CONFIG), Flow().run(4, rate=100, made=50, busy=1.0))
    assert limits(said) == ["workers"]


def test_the_end_of_an_epoch_says_nothing_about_workers() -> None:
    flow, judge = Flow(length=1001), Judge(CONFIG)
    heard(judge, flow.run(10, rate=80, busy=0.9, starvation=0.01))
    drained = Queues(index=0, in_flight=200, window=400)
    said = heard(judge, flow.run(2.4, rate=80, busy=0.0, made=0, queues=drained))
    assert {each.limit for each in said} == {"training"}
    assert not any("would do" in each.advice for each in said)


def test_a_change_of_load_is_seen_within_three_seconds() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    assert limits(heard(judge, flow.run(20, busy=0.6))) == ["training"]
    assert heard(judge, flow.run(3, starvation=0.5))[-1].limit == "workers"
    assert heard(judge, flow.run(3, busy=0.6, starvation=0.01))[-1].limit == "training"


def test_a_load_that_alternates_gets_one_verdict_with_its_range() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    said = []
    for _ in range(10):
        said += heard(judge, flow.run(3, starvation=0.6))
        said += heard(judge, flow.run(3, busy=0.7, rate=20))
    settled = said[len(said) // 2 :]
    assert limits(settled) == ["workers"]
    assert "by turns" in settled[-1].sentence


def test_short_epochs_are_judged_together() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    said = []
    for _ in range(12):
        flow.next_epoch()
        flow.first_pid += 10  # workers are started anew
        said += heard(judge, flow.run(0.6, rate=0, busy=0, startup=1.0))
        said += heard(judge, flow.run(0.8, busy=0.5))
    settled = said[len(said) // 2 :]
    assert limits(settled) == ["startup"]
    assert "persistent_workers=True" in settled[-1].advice
    assert {each.verdict for each in settled} == {"Data-bound."}


def test_a_long_epoch_is_not_judged_by_its_first_batch() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    flow.batch = 0
    heard(judge, flow.run(4, rate=0, busy=0.5, startup=1.0))
    assert limits(heard(judge, flow.run(4, busy=0.5))) == ["training"]


def test_a_finished_run_shows_its_whole_last_epoch() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    heard(judge, flow.run(10, starvation=0.5))
    heard(judge, flow.run(10, busy=0.5))
    flow.state = "closed"
    flow.workers = 0
    (said,) = heard(judge, [flow.snapshot(Queues())])
    assert said.verdict == "Finished."
    assert "In the last epoch training waited 25 % of the time; the workers limited it." in said.sentence
    assert said.limit == "workers"


def test_one_snapshot_is_judged_by_the_epoch_so_far() -> None:
    """`stats()` may be called for the first time in the midst of an epoch."""
    flow, judge = Flow(), Judge(CONFIG)
    *_, last = flow.run(10, starvation=0.5)
    (said,) = heard(judge, [last])
    assert said.limit == "workers"
    assert said.sentence.startswith("In this epoch training waited 50 %")


def test_workers_that_keep_dying_turn_it_red() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    heard(judge, flow.run(5, busy=0.5))
    for _ in range(3):
        flow.recoveries += 1
        flow.first_pid += 10
        heard(judge, flow.run(0.4, busy=0.5))
    judge.note(WorkerEvent(flow.at, "died", 1, 101, -9, "SIGKILL", 17, True))
    said = judge.verdict()
    assert (said.tone, said.verdict, said.limit) == ("bad", "Workers keep dying.", "failure")
    assert "3 workers died in the last minute" in said.sentence
    assert "SIGKILL at batch 17" in said.sentence
    assert limits(heard(judge, flow.run(70, busy=0.5)))[-1] == "training"


def test_an_error_turns_it_red() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    heard(judge, flow.run(3, busy=0.5))
    flow.state = "failed"
    judge.note(EpochEvent(flow.at, "failed", 0, 17, "OSError: truncated\n  at line 3"))
    (said,) = heard(judge, [flow.snapshot()])
    assert (said.tone, said.verdict, said.limit) == ("bad", "Failed.", "failure")
    assert said.sentence == "Epoch 0 ended in an error. OSError: truncated"


def test_the_culprit_is_named() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    judge.note(Stall(1001.0, 830_000, 9, 0, 100, 2, "91723", 790_000))
    said = heard(judge, flow.run(3, reorder_stall=0.4, busy=0.4))[-1]
    assert "The longest stall was 830 ms, for batch 100 on worker 2 (sample 91723: 790 ms)." in said.sentence


@pytest.mark.parametrize(
    ("flow", "advice"),
    [
        ({"starvation": 0.5}, "About 9 workers would keep up, if there are processors for them."),
        ({"starvation": 0.95}, "More workers would help: 16 would make about 201 batches/s instead of 50.3"),
        ({"starvation": 0.99}, "More workers would help: 16 would make about 201 batches/s instead of 50.3"),
        ({"busy": 0.25}, "The 4 workers are busy 25 % of the time; 2 would do."),
        ({"busy": 0.1}, "The 4 workers are busy 10 % of the time; one would do."),
        ({"busy": 0.6}, ""),
    ],
)
def test_advice(flow: dict[str, float], advice: str) -> None:
    said = heard(Judge(CONFIG), Flow().run(8, **flow))  # type: ignore[arg-type]
    assert said[-1].advice.startswith(advice)
    assert bool(said[-1].advice) == bool(advice)


def test_no_more_workers_are_advised_than_the_loader_takes() -> None:
    said = heard(Judge(Config(max_workers=6)), Flow().run(8, starvation=0.6))
    assert said[-1].workers == 6


def test_what_is_not_seen_from_outside_is_not_judged() -> None:
    said = heard(Judge(Config(engine="torch")), Flow(workers=0, knows=["queues", "workers"]).run(8, starvation=0.4))
    assert (said[-1].verdict, said[-1].limit) == ("Data-bound.", "none")
    assert "not seen from outside" in said[-1].sentence


def test_no_workers() -> None:
    said = heard(Judge(CONFIG), Flow(workers=0).run(8, starvation=0.4))
    assert said[-1].advice == "num_workers=1 or more would read ahead."


@pytest.mark.parametrize(
    ("flow", "limit", "words"),
    [
        ({"processor": 0.5, "queued": 0.5}, "processors", "Both processors are full: more workers will not help"),
        ({"processor": 0.49, "queued": 0.2}, "processors", "61 % of a sample's time is computing"),
        (
            {"processor": 0.25, "queued": 0.7, "others": 1.0},
            "neighbours",
            "take 1.00 of 2.00 processors",
        ),
        ({"processor": 0.02, "queued": 0.01}, "workers", "They wait for storage, the network, a lock or a timer 97 %"),
    ],
)
def test_processors_that_are_full_are_the_limit_and_not_the_workers(
    flow: dict[str, float], limit: Limit, words: str
) -> None:
    judge = Judge(CONFIG)
    said = heard(judge, Flow(allowed=2.0).run(8, starvation=0.5, **flow))  # type: ignore[arg-type]
    assert limits(said)[-1] == limit
    assert said[14].limit == limit
    assert words in said[-1].sentence
    assert (said[-1].workers is not None) == (limit == "workers")


def test_no_more_workers_are_advised_than_there_are_processors_for() -> None:
    """Half of a sample's time is computing: on two processors, four workers fill them."""
    said = heard(Judge(CONFIG), Flow(workers=2, allowed=2.0).run(8, starvation=0.9, processor=0.5))
    assert (said[-1].limit, said[-1].workers) == ("workers", 4)
    assert "4 would make about 100 batches/s instead of 50.0" in said[-1].advice


def test_more_workers_that_make_no_more_batches_share_something() -> None:
    flow, judge = Flow(workers=2, allowed=8.0), Judge(CONFIG)
    assert limits(heard(judge, flow.run(8, starvation=0.5, processor=0.01))) == ["workers"]
    flow.resize(6)
    said = heard(judge, flow.run(8, starvation=0.5, processor=0.01))
    assert limits(said) == ["shared"]
    assert said[-1].workers is None


def test_a_budget_with_no_room_for_another_batch_is_the_limit() -> None:
    flow, judge = Flow(), Judge(CONFIG)
    full = Queues(index=0, in_flight=4, window=4096, memory_budget=4 << 20)
    for snapshot in flow.run(4, starvation=0.6, busy=0.3, queues=full):
        judge.take(replace(snapshot, bytes=snapshot.batches << 20))
    assert judge.verdict().limit == "memory"


def test_a_training_that_died_of_an_error_is_never_called_finished() -> None:
    judge = Judge()
    fatal = Errors(1, 100.0, "ValueError: the loss is not finite", "training", True)
    judge.take(Snapshot(1, 100.0, "failed", batch=7, batches=7, errors=fatal))
    for presence in ("connected", "finished", "lost"):
        verdict = judge.verdict(presence)
        assert (verdict.tone, verdict.verdict, verdict.limit) == ("bad", "Died of an error.", "failure")
        assert "ValueError: the loss is not finite" in verdict.sentence


@pytest.mark.parametrize("load", [{"starvation": 0.5}, {"busy": 0.3}])
def test_time_in_another_loader_changes_nothing(load: dict[str, float]) -> None:
    """A validation loop every few seconds: the clock stands still, and the verdict stays what it was."""
    flow, judge = Flow(), Judge(CONFIG)
    said = heard(judge, flow.run(4, **load))  # type: ignore[arg-type]
    for _ in range(4):
        for _ in range(20):
            flow.at += 0.2
            said += heard(judge, [flow.snapshot()])
        said += heard(judge, flow.run(3, **load))  # type: ignore[arg-type]
    assert len(limits(said)) == 1
    assert all(each.verdict != "Measuring." for each in said[10:])
    assert said[-1].waiting == pytest.approx(load.get("starvation", 0.0), abs=0.02)


def test_the_last_epoch_is_told_as_a_whole() -> None:
    """Its drained end is not what it was like."""
    flow, judge = Flow(length=1000), Judge(CONFIG)
    heard(judge, flow.run(10, starvation=0.4, rate=90))
    flow.length = int(flow.batch)
    heard(judge, flow.run(2, busy=0.0, rate=0.0, queues=Queues()))
    flow.state = "closed"
    heard(judge, [flow.snapshot()])
    found = judge.last_epoch()
    assert found.starvation == pytest.approx(4 / 12, abs=0.01)
    assert found.batches == pytest.approx(900 / 12, rel=0.05)
    assert found.busy == pytest.approx(4, rel=0.1), "of the time in which there was something to do"
    assert Judge(CONFIG).last_epoch() == Rates()
