"""Another number of ranks: every sample of the epoch is seen exactly once, whoever went on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock import DataLoader, DistributedSampler, RandomSampler, merge_states

from tests.adoption.support import run

LENGTH = 240
"""More than two stages take, so that no rank is at the end of the epoch while another is not."""


def loaders(ranks: int, batch_size: int, theirs: bool = False, length: int = LENGTH, **options: Any) -> list[Any]:
    kind: Any = torch.utils.data.DistributedSampler if theirs else DistributedSampler
    data: Any = list(range(length))
    made = []
    for rank in range(ranks):
        sampler = kind(data, ranks, rank, seed=5, **options)
        sampler.set_epoch(3)
        made.append(DataLoader(data, batch_size, sampler=sampler, monitor=False, generator=torch.Generator()))
    return made


def advance(loaders: list[Any], steps: list[int] | None) -> tuple[list[int], list[Any]]:
    """Take so many batches on each rank, or all; the samples, and the states after that."""
    seen: list[int] = []
    states = []
    for rank, loader in enumerate(loaders):
        batches = iter(loader)
        for number, batch in enumerate(batches, 1):
            seen += batch.tolist()
            if steps is not None and number == steps[rank]:
                break
        states.append(json.loads(json.dumps(loader.state_dict())))
    return seen, states


stages = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)


@settings(max_examples=60)
@given(stages, st.booleans(), st.booleans(), st.booleans())
def test_every_sample_comes_once_however_often_the_ranks_change(
    stages: list[tuple[int, int, int]], theirs: bool, shuffle: bool, drop_last: bool
) -> None:
    options = {"theirs": theirs, "shuffle": shuffle, "drop_last": drop_last}
    seen: list[int] = []
    merged: Any = None
    for number, (ranks, batch_size, steps) in enumerate(stages):
        here = loaders(ranks, batch_size, **options)
        for loader in here if merged else []:
            loader.load_state_dict(merged)
        last = number == len(stages) - 1
        # Rank 0 may be a batch ahead of the others, as when one of them was slower to save.
        taken, states = advance(here, None if last else [steps + (rank == 0) for rank in range(ranks)])
        seen += taken
        merged = merge_states(states)
    left = LENGTH - len(set(seen))
    repeated = len(seen) - len(set(seen))
    ranks = stages[-1][0]
    assert (left < ranks and not repeated) if drop_last else (not left and repeated < ranks)


def test_without_a_change_of_ranks_the_rest_is_what_it_would_have_been() -> None:
    """And what comes after the epoch goes on from its end."""
    _, states = advance(loaders(2, 4), [3, 3])
    merged = merge_states(states)
    for rank, (resumed, plain) in enumerate(zip(loaders(2, 4), loaders(2, 4), strict=True)):
        resumed.load_state_dict(merged)
        plain.load_state_dict(states[rank])
        assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in plain]
        assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in plain]
    _, ended = advance(loaders(2, 4), None)
    three = loaders(3, 4)
    for loader in three:
        loader.load_state_dict(merge_states(ended))
    assert sorted(advance(three, None)[0]) == list(range(LENGTH))


def test_what_does_not_belong_together_is_said() -> None:
    _, states = advance(loaders(2, 4), [3, 3])
    _, others = advance(loaders(2, 4, length=60), [3, 3])
    with pytest.raises(ValueError, match="of 2 ranks, but 1 were given"):
        merge_states(states[:1])
    with pytest.raises(ValueError, match="got none"):
        merge_states([])
    with pytest.raises(ValueError, match="does not fit"):
        merge_states([states[0], others[0]])
    with pytest.raises(ValueError, match="not of one moment"):
        merge_states([states[0], {**states[1], "epoch": 4}])
    with pytest.raises(ValueError, match="not a state"):
        merge_states([states[0], merge_states(states)])
    with pytest.raises(ValueError, match="saved with"):
        loaders(2, 4, shuffle=False)[0].load_state_dict(merge_states(states))
    data: Any = list(range(LENGTH))
    with pytest.raises(ValueError, match="needs a DistributedSampler"):
        DataLoader(data, 4, sampler=RandomSampler(data)).load_state_dict(merge_states(states))
    alone = DataLoader(data, 4, sampler=RandomSampler(data), monitor=False)
    with pytest.raises(ValueError, match="only states of loaders with a DistributedSampler"):
        merge_states(advance([alone], [2])[1])


TRAINING = """
import json, sys, torch
from penstock import DataLoader, merge_states
from torch.utils.data import DistributedSampler
torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
folder, steps = sys.argv[1], int(sys.argv[2])
data = list(range(264))
train = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=1), num_workers=rank % 2, monitor=False)
if len(sys.argv) > 3:
    before = [json.load(open(f"{folder}/{sys.argv[3]}-{number}.json"))["state"] for number in range(int(sys.argv[3]))]
    train.load_state_dict(merge_states(before))
seen = []
for batch in train:
    seen += batch.tolist()
    steps -= 1
    if steps == 0:
        break
json.dump({"seen": seen, "state": train.state_dict()}, open(f"{folder}/{ranks}-{rank}.json", "w"))
torch.distributed.barrier()  # who leaves before another rank has connected to it breaks that rank
torch.distributed.destroy_process_group()
"""


def test_four_ranks_then_two_then_three(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    for ranks, *arguments in ((4, "6"), (2, "9", "4"), (3, "0", "2")):
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone")
        run(*torchrun, str(script), str(tmp_path), *map(str, arguments), folder=tmp_path)
    files = [json.loads((tmp_path / f"{n}-{rank}.json").read_text()) for n in (4, 2, 3) for rank in range(n)]
    assert [len(each["seen"]) for each in files] == [24] * 4 + [36] * 2 + [32] * 3
    assert sorted(sample for each in files for sample in each["seen"]) == list(range(264))
