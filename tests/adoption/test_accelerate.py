"""Hugging Face Accelerate: shards, bookkeeping and states are its own, the engine stays ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.adoption.support import needs, run

pytestmark = needs("accelerate")


def test_two_processes_share_an_epoch_and_go_on_from_one_state(tmp_path: Path) -> None:
    """One process is what the README's example runs."""
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m")
    run(*torchrun, "tests.adoption.accelerate_training", str(tmp_path), folder=tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for facts in ranks:
        check(facts)
    # Accelerate fills the last round up with samples from the start.
    assert {sample for facts in ranks for batch in facts["seen"] for sample in batch} == set(range(44))
    assert sorted(number for facts in ranks for number in facts["iterable"]) == list(range(16))


def check(facts: Any) -> None:
    assert facts["ours"]
    assert facts["drop-in"]
    assert facts["prefetch_factor"] is None
    assert facts["max_retries"] == 7
    assert facts["workers"] == 1, "a resize reaches the engine"
    assert facts["yielded"] == len(facts["seen"]) + len(facts["second"])
    assert facts["ends"] == [False] * (len(facts["seen"]) - 1) + [True], "gradient accumulation relies on it"
    assert facts["rest"] == facts["seen"][2:]
    skipped = facts["skipped"]
    assert skipped["name"] == "train"
    assert (len(skipped["rest"]), skipped["whole"]) == (len(facts["seen"]) - 2, len(facts["seen"]))
    assert facts["second again"] == facts["second"]
