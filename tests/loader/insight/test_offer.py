"""The offer in a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import pytest
from penstock.insight import offer
from penstock.insight.load import summarize
from penstock.insight.offer import Offers, best, fewest
from penstock.insight.replay import predict_range
from penstock.insight.words import count
from penstock.protocol import Config, Limit, Load, Prediction, Verdict

from tests.recorded.loads import recorded_loads

SLOW = Verdict("bad", "Data-bound.", "s", "a", "workers", "workers", 0.9, 6)
LOADS = {name: summarize(each.before.recording(), **each.before.more) for name, each in recorded_loads().items()}


def test_more_workers_are_offered_with_what_they_would_bring() -> None:
    verdict = Offers().add(SLOW, LOADS["sleep"], Config())
    assert verdict.workers == 16
    assert verdict.offer.startswith("Apply 16: 19")
    assert "→ up to 7" in verdict.offer, "its batches take so evenly long that a lock would not be seen"
    assert verdict.brings is not None
    assert (verdict.brings_low or 0) < verdict.brings < (verdict.brings_high or 0)
    assert (verdict.tone, verdict.sentence) == (SLOW.tone, SLOW.sentence)


@pytest.mark.parametrize("limit", ["workers", "samples"])
@pytest.mark.parametrize("name", sorted(LOADS))
def test_words_and_button_name_the_same_numbers(name: str, limit: Limit) -> None:
    estimate = msgspec.structs.replace(SLOW, limit=limit, advice="About 6 workers would keep up.")
    offers, config = Offers(), Config()
    verdict = offers.add(estimate, LOADS[name], config)
    numbers = re.findall(r"[\d.,]+\d|\d", verdict.advice)
    if verdict.workers is None:
        assert verdict.offer == "" and not numbers
    else:
        assert sorted(numbers) == sorted(re.findall(r"[\d.,]+\d|\d", verdict.offer)) and len(numbers) == 3
        assert count(verdict.workers) in numbers
    assert offers.brief(estimate, LOADS[name], config) == verdict, "who looks at many loaders reads the same"
    unasked = Offers().brief(estimate, LOADS[name], config)
    assert unasked.workers is None and not re.search(r"\d", unasked.advice), "nothing is worked out for them"
    assert Offers().brief(estimate, None, config) == estimate


def test_what_is_likely_is_said_to_be() -> None:
    assert "→ about " in Offers().add(SLOW, LOADS["varied"], Config()).offer


def test_no_more_is_offered_than_may_be() -> None:
    assert Offers().add(SLOW, LOADS["sleep"], Config(max_workers=6)).workers == 6


@pytest.mark.parametrize("name", ["lock", "processor", "storage"])
def test_nothing_is_offered_that_brings_nothing(name: str) -> None:
    verdict = Offers().add(SLOW, LOADS[name], Config())
    assert (verdict.offer, verdict.workers, verdict.brings) == ("", None, None)
    assert verdict.advice.startswith("No other number of workers would bring much more")
    other = msgspec.structs.replace(SLOW, workers=None, advice="More workers would find no processor.")
    assert Offers().add(other, LOADS[name], Config()) == other


@pytest.mark.parametrize("limit", ["training", "processors", "shared", "sampler", "none"])
def test_where_workers_are_not_the_limit_nothing_is_offered(limit: Limit) -> None:
    verdict = Verdict("bad", "v", "s", "a", limit)
    assert Offers().add(verdict, LOADS["sleep"], Config()) == verdict
    assert Offers().add(SLOW, None, Config()) == SLOW


def test_the_fewest_that_bring_nearly_all_are_best() -> None:
    assert fewest([Prediction(2, 50), Prediction(4, 98), Prediction(8, 100), Prediction(16, 99)]) == Prediction(4, 98)
    assert fewest([]) is None
    found = best(LOADS["consumer"], 64)
    assert found is not None
    assert found.workers == 2


def test_a_load_is_replayed_once_however_often_the_verdict_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(load: Load | None, numbers: Iterable[int]) -> list[Prediction]:
        asked.append(load)
        return predict_range(load, numbers)

    monkeypatch.setattr(offer, "predict_range", counted)
    offers, other = Offers(), msgspec.structs.replace(LOADS["sleep"], at=2.0)
    for sentence in ("Training waits 70 %.", "Training waits 71 %."):
        verdict = msgspec.structs.replace(SLOW, sentence=sentence)
        offered = offers.add(verdict, LOADS["sleep"], Config())
        assert offered.offer and offered.sentence == sentence
    assert len(asked) == 1
    offers.add(SLOW, other, Config())
    assert len(asked) == 2
