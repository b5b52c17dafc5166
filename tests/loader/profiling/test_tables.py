"""What functions and lines cost: own and total time add up, and the hottest line is one that the user can change."""

from __future__ import annotations

import pytest
from hypothesis import given
from penstock.profiling.tables import Cost

from tests.loader.profiling.trees import Calls, calls, profile_of

GETITEM, DECODE, OPEN, LIBRARY = 0, 2, 1, 3
"""Functions of `trees`: those with an even number are the user's."""


@given(calls)
def test_own_times_add_up_and_no_total_is_more_than_the_whole(some: Calls) -> None:
    profile = profile_of(some)
    total = profile.total()
    ours = sum(wall for _, _, path, wall, _ in some if not path) / 1000
    for rows in (profile.functions(), profile.lines()):
        assert sum(row.own for row in rows) + ours == pytest.approx(total)
        assert all(row.own <= row.total <= total + 1e-9 for row in rows)


@given(calls)
def test_phases_and_workers_are_parts_of_the_whole(some: Calls) -> None:
    profile = profile_of(some)
    assert sum(profile.total(phase=phase) for phase in ("fetch", "collate", "send")) == pytest.approx(profile.total())
    by_worker = (profile.total("processor", worker=worker) for worker in range(4))
    assert sum(by_worker) == pytest.approx(profile.total("processor"))


def test_what_calls_itself_is_counted_once() -> None:
    profile = profile_of([(0, 0, [(0, 1), (0, 1), (2, 7)], 100, 0), (0, 0, [(0, 1)], 50, 0)])
    rows = {row.function: row for row in profile.functions()}
    assert rows["f0"] == Cost("f0", "/home/me/part0.py", 0, True, 0.05, 0.15)
    assert rows["f2"].total == rows["f2"].own == 0.1


def test_the_time_of_libraries_is_charged_to_the_line_that_called_them() -> None:
    profile = profile_of(
        [
            (0, 0, [(GETITEM, 3), (DECODE, 41), (OPEN, 9)], 600, 10),
            (1, 0, [(GETITEM, 3), (DECODE, 41), (OPEN, 9), (LIBRARY, 2)], 100, 10),
            (0, 0, [(GETITEM, 3), (DECODE, 42)], 20, 5),
            (0, 0, [(GETITEM, 4)], 80, 900),
            (0, 1, [(LIBRARY, 1)], 200, 0),
        ]
    )
    found = profile.hottest()
    assert found is not None
    assert (found.function, found.file, found.line) == ("f2", "/home/me/part2.py", 41)
    assert (found.share, found.line_share) == (0.72, 0.7)
    by_processor = profile.hottest("processor")
    assert by_processor is not None
    assert by_processor.function == "f0"
    assert profile_of([(0, 1, [(LIBRARY, 1)], 200, 0)]).hottest() is None


def test_the_table_for_a_person_names_functions_shares_and_what_is_a_librarys() -> None:
    text = str(profile_of([(0, 0, [(GETITEM, 3), (OPEN, 9)], 750, 10), (0, 1, [(DECODE, 1)], 250, 0)]))
    assert "75.0%  75.0% ·f1 (part1.py:10)" in text
    assert "fetch 75%, collate 25%, send 0%" in text
    assert "75% is f0 with what it calls, most at part0.py:3" in text
    assert "nothing was seen" in str(profile_of([]))
