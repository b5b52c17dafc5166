"""Segments: shared between processes, by whichever way the system has, and without a name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock.pool import memory
from penstock.pool.memory import SOURCES, Mapping, create_segment, take


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_what_one_process_writes_another_reads(
    source: Callable[[int], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "SOURCES", (source,))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptor = create_segment(10_000)
    assert not os.get_inheritable(descriptor)
    ours, theirs = Mapping(descriptor, 10_000).export(), Mapping(descriptor, 10_000)
    os.close(descriptor)
    child = os.fork()
    if not child:
        theirs.export()[9_999] = b"x"
        os._exit(0)
    os.waitpid(child, 0)
    assert ours[9_999] == b"x"
    assert ours[0] == b"\0"
    assert not [*tmp_path.iterdir(), *Path("/dev/shm").glob("penstock-*")], "a name is left"


def test_what_is_taken_is_there_before_it_is_touched_and_no_more() -> None:
    whole, part = 40 << 20, 9 << 20
    descriptor = create_segment(whole)
    take(descriptor, part)
    assert part <= os.fstat(descriptor).st_blocks * 512 < part + (1 << 20)
    mapping = Mapping(descriptor, whole)
    mapping.populate(part)
    ours = mapping.export()
    assert ours[part - 1] == ours[whole - 1] == b"\0"
    ours[part - 1] = ours[whole - 1] = b"x"
    assert Mapping(descriptor, whole).export()[part - 1] == b"x"
    os.close(descriptor)


def test_a_way_that_is_forbidden_or_full_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory, "SOURCES", (refuse, refuse, SOURCES[-1]))
    descriptor = create_segment(100)
    assert os.fstat(descriptor).st_size == 100
    os.close(descriptor)


def test_where_no_way_is_left_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    monkeypatch.setattr(memory, "SOURCES", (SOURCES[-1],))
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        create_segment(100)
