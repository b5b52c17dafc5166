"""PyTorch Lightning: the engine, every argument and the place in the epoch survive what it does with loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.adoption.support import needs, run

pytestmark = needs("lightning")
ARGUMENTS = {"name": "train", "monitor": False, "publish_interval": 0.5, "max_retries": 7}


def test_every_rank_gets_its_share_and_a_checkpoint_inside_an_epoch_goes_on(tmp_path: Path) -> None:
    run("-m", "tests.adoption.lightning_training", str(tmp_path), folder=tmp_path)
    facts = json.loads((tmp_path / "facts.json").read_text())
    check_ranks(facts["two"])
    assert len(facts["one"]["whole"]) == 24
    assert facts["one"]["rest"] == facts["one"]["whole"][5:]


def test_a_loader_of_torchs_becomes_ours_and_stays_so_on_every_rank(tmp_path: Path) -> None:
    run("-m", "tests.adoption.lightning_training", str(tmp_path), "adopted", folder=tmp_path)
    check_ranks(json.loads((tmp_path / "facts.json").read_text())["two"])


def check_ranks(ranks: Any) -> None:
    """Lightning makes a new loader, with a DistributedSampler, for each."""
    for facts in ranks:
        assert facts["ours"]
        assert facts["arguments"] == ARGUMENTS
        assert facts["prefetch_factor"] is None, "what was not given must not look as if it had been"
        assert facts["workers"] == 2
    first = [sample for facts in ranks for batch in facts["seen"][:6] for sample in batch]
    assert sorted(first) == list(range(48))
    assert ranks[0]["seen"][:6] != ranks[0]["seen"][6:], "the second epoch is shuffled anew"
