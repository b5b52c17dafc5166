"""The store of a cache: whole records or none, whoever dies, whatever is full, and however many use it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from penstock.caching import store as stores
from penstock.caching.places import in_file, in_memory
from penstock.caching.samples import Recorder, key_of, sample_of
from penstock.caching.store import Store, identity_of

from tests.loader.support import KINDS, assert_same, make_sample

SAMPLES = 12
IDENTITY = identity_of("a dataset", SAMPLES)


def name(index: int) -> tuple[int, bytes]:
    return index, b"%d" % index


def sample(index: int) -> Any:
    return {"x": torch.full((50, index + 1), index), "name": f"sample {index}", "y": [np.arange(index), b"z" * index]}


def add(store: Store, index: int) -> bool:
    return store.add(*name(index), Recorder().record(name(index)[1], sample(index)), took=1000 + index)


def kept(store: Store) -> set[int]:
    """The samples that are kept, each of which is right."""
    found = set()
    for index in range(SAMPLES):
        record = store.get(*name(index))
        if record is not None:
            assert_same(sample_of(record.record), sample(index))
            assert record.took == 1000 + index
            found.add(index)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_back_as_they_were(kind: str) -> None:
    made = make_sample(kind, 7)
    record = bytearray(b"".join(map(bytes, Recorder().record(b"key", made))))
    assert key_of(record) == b"key"
    assert_same(sample_of(record), made)


def test_strides_and_shared_objects_of_a_sample_stay() -> None:
    image = torch.rand(8, 6, 3).permute(2, 0, 1)
    made = sample_of(bytearray(b"".join(map(bytes, Recorder().record(b"", [image, image])))))
    assert made[0] is made[1]
    assert (made[0].stride(), made[0].tolist()) == (image.stride(), image.tolist())
    made[0].zero_()


@given(
    st.lists(st.integers(0, 99) | st.integers(2**64 - 9, 2**64 - 1), max_size=60),
    st.integers(0, 30_000),
    st.integers(1, 20),
)
def test_what_fits_is_kept_and_stays(numbers: list[int], budget: int, places: int) -> None:
    store = in_memory(IDENTITY, places, budget, shared=False)
    there: dict[int, bytes] = {}
    for number in numbers:
        contents = b"%d" % number * 200
        parts = Recorder().record(b"%d" % number, contents)
        if store.add(number, b"%d" % number, parts, 1):
            assert number not in there
            there[number] = contents
        for each, expected in there.items():
            found = store.get(each, b"%d" % each)
            assert found is not None
            assert sample_of(found.record) == expected
    samples, nbytes = store.usage()
    assert samples == len(there)
    assert nbytes <= budget
    store.close()


def test_equal_numbers_are_told_apart_by_their_keys() -> None:
    store = in_memory(IDENTITY, 10, 1 << 20, shared=False)
    for key in (b"a", b"b"):
        assert store.add(5, key, Recorder().record(key, key * 3), 1)
    for key in (b"a", b"b"):
        found = store.get(5, key)
        assert found is not None
        assert sample_of(found.record) == key * 3
    assert store.get(5, b"c") is None
    store.close()


def in_a_child(body: Callable[[], object]) -> int:
    """Run it in a forked process; minus the signal that ended it, or 0."""
    child = os.fork()
    if not child:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("torn", [False, True])
def test_whoever_is_killed_at_whatever_point_leaves_whole_records(tmp_path: Path, torn: bool) -> None:
    """Killed at every write there is, before it or in the midst of it; then others go on, and all is there."""
    path = tmp_path / "cache"
    point = 0
    while True:
        point += 1

        def die_there(point: int = point) -> None:
            write, calls = os.pwrite, 0

            def pwrite(descriptor: int, part: Any, offset: int) -> int:
                nonlocal calls
                calls += 1
                if calls == point:
                    if torn:
                        write(descriptor, bytes(part)[: len(part) // 2], offset)
                    os.kill(os.getpid(), signal.SIGKILL)
                return write(descriptor, part, offset)

            os.pwrite = pwrite
            store = in_file(path, IDENTITY, SAMPLES, 1 << 20)
            for index in range(3):
                add(store, index)

        died = in_a_child(die_there) == -signal.SIGKILL
        store = in_file(path, IDENTITY, SAMPLES, 1 << 20)
        kept(store)
        for index in range(SAMPLES):
            add(store, index)
        assert kept(store) == set(range(SAMPLES))
        store.close()
        path.unlink()
        if not died:
            break
    assert point > 15, "it wrote less than was expected"


@pytest.mark.parametrize("room", range(0, 9000, 700))
def test_a_full_disk_ends_adding_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    store = in_file(tmp_path / "cache", IDENTITY, SAMPLES, 1 << 20)
    write, left = os.pwrite, room

    def pwrite(descriptor: int, part: Any, offset: int) -> int:
        nonlocal left
        if offset < store._start:
            return write(descriptor, part, offset)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, bytes(part)[: min(left, len(part))], offset)
        left -= written
        return written

    monkeypatch.setattr(os, "pwrite", pwrite)
    added = {index for index in range(SAMPLES) if add(store, index)}
    assert kept(store) == added
    assert len(added) < SAMPLES
    assert "No space left" in store.failed
    assert store.usage()[0] == len(added)
    left = 1 << 20
    again = in_file(tmp_path / "cache", IDENTITY, SAMPLES, 1 << 20)
    assert all(add(again, index) for index in set(range(SAMPLES)) - added)
    assert kept(again) == set(range(SAMPLES))
    store.close()
    again.close()


def test_what_a_machine_lost_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start of the machine: records that are not what their check says, and an end that was not written."""
    store = in_file(tmp_path / "cache", IDENTITY, SAMPLES, 1 << 20)
    for index in range(SAMPLES):
        add(store, index)
    entry = next(entry for _, entry in store._entries(4) if entry is not None)
    os.pwrite(store.descriptor, bytes(100), entry.offset + 100)
    os.pwrite(store.descriptor, stores._END.pack(store._start, 3, store._boot), stores._END_AT)
    store.close()
    monkeypatch.setattr(stores, "_boot", lambda: 4711)
    again = in_file(tmp_path / "cache", IDENTITY, SAMPLES, 1 << 20)
    assert kept(again) == set(range(SAMPLES)) - {4}
    assert add(again, 4)
    assert kept(again) == set(range(SAMPLES))
    again.close()


def test_many_processes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cache"

    def fill() -> None:
        store = in_file(path, IDENTITY, SAMPLES, 1 << 20)
        for index in range(SAMPLES):
            kept(store)
            add(store, index)

    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            try:
                fill()
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    store = in_file(path, IDENTITY, SAMPLES, 1 << 20)
    assert kept(store) == set(range(SAMPLES))
    assert store.usage()[0] >= SAMPLES
    store.close()


def test_what_somebody_else_writes_takes_no_room_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (in_file(tmp_path / "cache", IDENTITY, 64, 1 << 30) for _ in range(2))
    with theirs._alone():
        assert theirs._claim(*name(3), 5000) is not None
    assert add(ours, 3), "a claim of our own, left behind by an exception, keeps nobody from it"
    with theirs._alone():
        assert theirs._claim(*name(5), 5000) is not None
    taken, me = ours.usage()[1], os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: me + 1)  # it is another process that asks now
    assert not add(ours, 5)
    assert ours.usage()[1] == taken
    monkeypatch.setattr(stores, "_lives", lambda _pid: False)
    assert add(ours, 5)
    assert kept(ours) == {3, 5}


def test_a_file_of_another_dataset_is_made_anew_and_one_that_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "cache"
    store = in_file(path, IDENTITY, SAMPLES, 1 << 20)
    add(store, 1)
    store.close()
    other = in_file(path, identity_of("another"), SAMPLES, 1 << 20)
    assert kept(other) == set()
    other.close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="nobody else may write"):
        in_file(path, IDENTITY, SAMPLES, 1 << 20)
    path.write_bytes(b"a picture, say, of nothing in particular")
    path.chmod(0o600)
    with pytest.raises(FileExistsError, match="is no cache of Penstock's"):
        in_file(path, IDENTITY, SAMPLES, 1 << 20)
    assert path.read_bytes().startswith(b"a picture")
    assert list(path.parent.iterdir()) == [path]
