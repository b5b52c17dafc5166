"""Workers that never idle: whether more of them are advised depends on what they need processors for."""

from __future__ import annotations

import pytest
from penstock.insight.evidence import Evidence
from penstock.insight.occupation import Occupation
from penstock.insight.shares import Shares
from penstock.insight.slowness import too_slow
from penstock.protocol import Config, Verdict


def judged(occupation: Occupation, others: float) -> Verdict:
    """Two workers on two processors; training waits for most of the time."""
    shares: Shares = {"compute": 0.3, "starvation": 0.7}
    seen = Evidence("Lately", 10.0, shares, 50, 50, 2, 2.0, occupation=occupation, others=others, allowed=2.0)
    return too_slow("Both workers are busy", seen, Config(num_workers=2, max_workers=32), None)


@pytest.mark.parametrize("others", [0.0, 1.0, 1.9, 2.0])
def test_workers_that_hardly_compute_are_to_be_more_whoever_else_computes(others: float) -> None:
    verdict = judged(Occupation(0.04, 0.06, 1.9), others)
    assert verdict.limit == "workers" and verdict.workers is not None and verdict.workers > 2
    assert "no processor" not in verdict.advice


def test_workers_that_compute_find_no_processor_if_others_have_them() -> None:
    verdict = judged(Occupation(0.9, 0.1, 1.0), 1.0)
    assert verdict.workers is None
