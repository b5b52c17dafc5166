"""Keys from bytes, however the bytes are cut into reads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock_dashboard.terminal.keys import Keys

TYPED = {
    b"p": "p",
    b"+": "+",
    b"\r": "enter",
    b"\x1b[A": "up",
    b"\x1bOB": "down",
    b"\x1b[6~": "page down",
    "é".encode(): "é",
}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(sorted(TYPED))), st.lists(st.integers(0, 40)))
def test_reads_may_be_cut_anywhere(typed: list[bytes], cuts: list[int]) -> None:
    data = b"".join(typed)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    keys = Keys()
    pressed = [key for start, end in pairwise(edges) for key in keys.feed(data[start:end])]
    assert pressed == [TYPED[each] for each in typed]
    assert not keys.waiting


def test_escape_is_a_key_when_nothing_follows_or_something_else() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.waiting
    assert keys.settle() == ["escape"]
    assert keys.feed(b"\x1bq") == ["escape", "q"]
    assert keys.feed(b"\x1b[1;5D\x1b[Zj") == ["j"]  # sequences that mean nothing here
