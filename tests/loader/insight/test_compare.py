"""Two stretches of time: which are meant, how they differ, and what is said of that."""

from __future__ import annotations

import math

import pytest
from penstock.insight import compare, stretches
from penstock.insight.stretches import Stretch, find, parse
from penstock.protocol import CommandEvent, ComparedNumber, Config, EpochEvent, Event, History, Rates


def history(rates: dict[str, float], every: float = 1.0, count: int = 60, swing: float = 0.0) -> History:
    """A stretch in which rates stay as they are, but for a swing of the throughput."""
    at = [1000.0 + every * place for place in range(count)]
    mean = {name: [getattr(Rates(**rates), name)] * count for name in Rates.__struct_fields__}
    mean["batches"] = [rate * (1 + swing * math.sin(place / 9)) for place, rate in enumerate(mean["batches"])]
    return History("run:0:train", 1000.0, 1000.0 + every * count, 0.0, at, mean)


BEFORE = {
    "batches": 20.0,
    "samples": 640.0,
    "compute": 0.4,
    "starvation": 0.6,
    "workers": 2.0,
    "busy": 1.9,
    "blocked": 1.8,
}
AFTER = {"batches": 48.0, "samples": 1536.0, "compute": 0.97, "starvation": 0.03, "workers": 6.0, "busy": 4.6}


def named(a: History, b: History) -> dict[str, ComparedNumber]:
    return {each.name: each for each in compare.numbers(compare.measure(a), compare.measure(b))}


def test_what_a_resize_brought_is_said_in_numbers_and_in_a_sentence() -> None:
    a, b = history(BEFORE), history(AFTER)
    found = named(a, b)
    assert (found["batches"].difference, found["batches"].brought) == ("2.40 ×", "better")
    assert (found["waiting"].difference, found["waiting"].brought) == ("−57 points", "better")
    assert (found["workers"].a_text, found["workers"].b_text, found["workers"].brought) == ("2", "6", "unknown")
    assert found["cost"].a == pytest.approx(1e6 * 1.9 / 640)
    assert "pin_wait" not in found, "what is nothing in both has no line"
    told = compare.sentence(compare.measure(a), compare.measure(b), list(found.values()))
    assert told == (
        "The second is faster: 48.0 batches/s instead of 20.0 batches/s (2.40 ×). "
        "Training waits 3 % of the time instead of 60 %."
    )
    back = named(b, a)
    assert (back["batches"].brought, back["waiting"].brought, back["cost"].brought) == ("worse", "worse", "same")


def test_what_varies_by_itself_is_no_difference() -> None:
    quiet, restless = history(BEFORE), history({**BEFORE, "batches": 21.5}, swing=0.9)
    assert named(quiet, history({**BEFORE, "batches": 21.5}))["batches"].brought == "better"
    assert named(quiet, restless)["batches"].brought == "same"
    assert named(quiet, restless)["batches"].difference == "same"


def test_time_without_an_epoch_and_another_pace_do_not_count() -> None:
    worked = history(BEFORE, every=0.2, count=50)
    idle = History(
        "run:0:train",
        1000.0,
        1110.0,
        0.0,
        [*worked.at, *[1010.0 + place for place in range(100)]],
        {name: [*column, *[0.0] * 100] for name, column in worked.mean.items()},
    )
    means = compare.measure(idle)
    assert means.rates.batches == pytest.approx(20.0)
    assert means.seconds == pytest.approx(10.0, rel=0.1)
    slow = [1010.0 + place for place in range(10)]
    faster = Rates(**{**BEFORE, "batches": 40.0})
    columns = {name: [*column, *[getattr(faster, name)] * 10] for name, column in worked.mean.items()}
    mixed = History("run:0:train", 1000.0, 1020.0, 0.0, [*worked.at, *slow], columns)
    assert compare.measure(mixed).rates.batches > 25.0, "ten samples of a second count for more than fifty of 0.2 s"


def test_each_stretch_has_a_verdict_of_its_own() -> None:
    config = Config(num_workers=2, max_workers=64)
    bound = compare.verdict(compare.measure(history(BEFORE)), config, [], 8)
    assert (bound.verdict, bound.limit, bound.advice) == ("Data-bound.", "workers", "")
    assert bound.sentence.startswith("In this stretch training waited 60 % of the time.")
    assert compare.verdict(compare.measure(history(AFTER)), config, [], 8).limit == "training"
    assert compare.verdict(compare.measure(history(AFTER, count=1)), config, [], 8).verdict == "Too little."


def test_of_nothing_nothing_is_said() -> None:
    empty, full = compare.measure(history({}, count=0)), compare.measure(history(BEFORE))
    assert compare.sentence(full, empty, compare.numbers(full, empty)).startswith("Of the second no epoch is stored")


EVENTS: list[Event] = [
    EpochEvent(100.0, "started", 0),
    EpochEvent(200.0, "ended", 0, 50),
    EpochEvent(201.0, "started", 1),
    CommandEvent(240.0, "resize", "applied", before=2, actual=6, took_us=500_000),
    CommandEvent(270.0, "pause", "applied"),
    CommandEvent(300.0, "resize", "rejected", before=6, asked=99),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("demo:0:train", Stretch(None, None, "all that is stored")),
        ("demo", Stretch(None, None, "all that is stored")),
        ("demo:0:train@epoch:0", Stretch(100.0, 200.0, "epoch 0")),
        ("demo:0:train@epoch:1", Stretch(201.0, None, "epoch 1")),
        ("demo:0:train@110.5-170.5", Stretch(110.5, 170.5, "a stretch of 1 min 0 s")),
        ("demo:0:train@before:240", Stretch(201.0, 239.5, "before 2 → 6 workers")),
        ("demo:0:train@after:350", Stretch(241.0, 270.0, "after 2 → 6 workers")),
    ],
)
def test_a_stretch_is_found_by_what_it_is_called(text: str, expected: Stretch) -> None:
    assert find(parse(text), EVENTS) == expected


def test_a_resize_at_an_epochs_edge_still_has_a_before() -> None:
    events: list[Event] = [
        EpochEvent(100.0, "started", 0),
        EpochEvent(199.5, "ended", 0),
        CommandEvent(200.0, "resize", "applied", before=2, actual=4),
    ]
    assert find(parse("demo:0:train@before:200"), events).start == 100.0


@pytest.mark.parametrize(
    "text", ["", "@epoch:1", "demo:0", "demo:0:train@epoch:x", "demo:0:train@5-5", "a b", "d@before:"]
)
def test_what_names_no_stretch_is_refused_with_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no stretch|ends before it begins"):
        parse(text)


@pytest.mark.parametrize("text", ["demo:0:train@epoch:7", "demo:0:train@before:90"])
def test_what_is_not_stored_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not stored; known are 0 to 1|No resize is stored"):
        stretches.find(parse(text), EVENTS)
