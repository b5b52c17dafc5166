"""The bracket: it closes, stays within its bounds, and ends near the right number whatever the curve."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.tuning.search import Search


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200))
def test_it_ends_within_a_tenth_of_the_number_that_is_needed(start: int, most: int, needed: int) -> None:
    """With trials that are always right: more is better up to the number that is needed, and no further."""
    start, needed = min(start, most), min(needed, most)
    search = Search(start, 1, most)
    for _ in range(40):
        above = search.above() if search.held < needed else None
        candidate = above if above is not None else search.below()
        if candidate is None:
            break
        assert 1 <= candidate <= most and candidate != search.held
        if candidate > search.held:
            better = min(candidate, needed) > search.held
            (search.keep if better else search.reject)(candidate)
        else:
            (search.keep if candidate >= needed else search.reject)(candidate)
    else:
        raise AssertionError("it does not end")
    assert abs(search.held - needed) <= max(1, 0.1 * needed)


@given(st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_a_reopened_one_tries_one_small_step_to_one_side(held: int, most: int, upwards: bool) -> None:
    held = min(held, most)
    search = Search(held, 1, most)
    search.reopen(upwards)
    up, down = search.above(), search.below()
    assert (down is None) if upwards else (up is None)
    for candidate in (up, down):
        assert candidate is None or 1 <= abs(candidate - held) <= max(1, 0.1 * held + 1)
