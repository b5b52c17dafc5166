"""`penstock.SharedList` is a list to those who read it, in memory that is shared with processes of every kind."""

from __future__ import annotations

import copy
import multiprocessing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock import SharedList
from torch.utils.data import Dataset

from tests.loader.support import DataLoader, values

items = st.lists(st.integers() | st.text(max_size=5) | st.tuples(st.binary(max_size=5), st.none()), max_size=12)


@given(items, st.slices(12), st.integers(-15, 15))
def test_it_is_like_the_list(plain: list[Any], part: slice, index: int) -> None:
    shared = SharedList(plain)
    assert list(shared) == plain == shared
    assert list(reversed(shared)) == plain[::-1]
    assert len(shared[part]) == len(plain[part])
    assert list(shared[part]) == plain[part]
    assert list(shared[part][::-1]) == plain[part][::-1]
    assert copy.deepcopy(shared[part]) == plain[part]
    if -len(plain) <= index < len(plain):
        assert shared[index] == plain[index]
        assert plain[index] in shared
        assert shared.index(plain[index]) == plain.index(plain[index])
    else:
        with pytest.raises(IndexError, match="list index out of range"):
            shared[index]


class Records(Dataset[int]):
    def __init__(self) -> None:
        self.records: SharedList[Any] = SharedList({"path": f"/data/{number}", "label": number} for number in range(40))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> int:
        label: int = self.records[index]["label"]
        return label


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_it(method: str) -> None:
    with DataLoader(Records(), 8, num_workers=2, multiprocessing_context=method) as loader:
        assert values(loader) == [list(range(first, first + 8)) for first in range(0, 40, 8)]
    del loader


def inode(shared: SharedList[int], pipe: Any) -> None:
    import os

    about = os.fstat(shared._memory.descriptor)
    pipe.send((about.st_dev, about.st_ino, list(shared)))


def test_a_spawned_process_has_the_same_memory() -> None:
    import os

    shared = SharedList(range(5))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=inode, args=(shared[1:], theirs))
    process.start()
    about = os.fstat(shared._memory.descriptor)
    assert ours.recv() == (about.st_dev, about.st_ino, [1, 2, 3, 4])
    process.join()
    ours.close()
    theirs.close()
