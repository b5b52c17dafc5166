"""Lines never leave the screen, and never carry what a terminal would obey."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_dashboard.terminal.canvas import Span, clean, fitted, plain, spread, width, wrapped

texts = st.text(max_size=60)
spans = st.lists(st.builds(Span, texts, st.sampled_from(["plain", "bold", "bad"])), max_size=5)


@settings(max_examples=50, deadline=None)
@given(spans, st.integers(1, 60))
def test_lines_fit_and_are_clean(parts: list[Span], columns: int) -> None:
    text = plain(fitted(parts, columns))
    assert width(text) <= columns
    assert text.isprintable()


@settings(max_examples=50, deadline=None)
@given(spans, st.integers(10, 60), st.integers(1, 5))
def test_wrapped_words_fit(parts: list[Span], columns: int, most: int) -> None:
    lines = wrapped(parts, columns, most)
    assert len(lines) <= most
    assert all(width(plain(line)) <= columns for line in lines)


def test_words_are_all_there_if_there_is_room() -> None:
    parts = [Span("Data-bound.", "bold"), Span("In the last 10 s training waited 50 % of the time.")]
    assert [plain(line) for line in wrapped(parts, 30, 9)] == [
        "Data-bound. In the last 10 s",
        "training waited 50 % of the",
        "time.",
    ]
    assert plain(wrapped(parts, 30, 1)[-1]).startswith("Data-bound. In the last 10")


def test_the_right_part_keeps_its_place() -> None:
    assert plain(spread([Span("a" * 30)], [Span("live")], 20)) == "aaaaaaaaaaaaaa… live"
    assert clean("a\x1b[2Jb\nc") == "a [2Jb c"
