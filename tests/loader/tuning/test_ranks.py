"""Ranks of a host are one: they try one at a time, and a rank that waits has what an idle one does not need."""

from __future__ import annotations

import itertools
from pathlib import Path

from .ranks import COSTS, fixed, tuned

UNTIL = 240.0


def test_four_ranks_on_two_processors_one_with_slow_data(tmp_path: Path) -> None:
    course, steps = tuned(tmp_path, UNTIL)
    trying: int | None = None
    for _, rank, step in steps:
        if step.what == "try":
            assert trying is None, "two ranks tried something at the same time"
            trying = rank
        elif step.what in ("keep", "back"):
            assert trying == rank
            trying = None
    since = course.settled_at()
    reached = course.rate(since, UNTIL)
    even = fixed((2,) * len(COSTS), UNTIL, apart=True).rate(since, UNTIL)
    best = max(fixed(split, UNTIL).rate(since, UNTIL) for split in itertools.product((1, 2, 3), (1, 2), (1,), (1,)))
    assert reached >= 1.5 * even
    assert reached >= 0.95 * best
