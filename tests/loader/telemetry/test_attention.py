from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.telemetry.attention import BURST, SHARE, Attention


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.5)), max_size=60))
def test_for_long_no_more_than_the_share_is_spent(steps: list[tuple[float, float]]) -> None:
    attention, now, spent, last = Attention(), 0.0, 0.0, 0.0
    for pause, cost in steps:
        now += pause
        if attention.left(now):
            attention.spend(cost)
            spent, last = spent + cost, cost
        else:
            assert attention.back_at() > now
            assert attention.left(attention.back_at() + 0.001)
            now = attention.back_at() + 0.001
    # What is begun within the means is finished, so the last one may go beyond them.
    assert spent - last <= BURST + SHARE * now + 1e-6


def test_who_says_little_is_always_heard() -> None:
    attention = Attention()
    for second in range(1000):
        assert attention.left(float(second))
        attention.spend(SHARE / 2)
