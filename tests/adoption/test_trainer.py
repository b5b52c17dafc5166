"""Hugging Face's Trainer under `penstock run torchrun`, unchanged: our engine, its words for names, and its resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.adoption.support import needs, run

pytestmark = [needs("transformers"), needs("datasets"), pytest.mark.timeout(300)]


def test_two_ranks_train_evaluate_and_resume(tmp_path: Path) -> None:
    torchrun = ("torchrun", "--nproc-per-node", "2", "--standalone", "-m")
    penstock = ("-m", "penstock_dashboard", "run", "--no-dashboard", *torchrun)
    run(*penstock, "tests.adoption.trainer_training", str(tmp_path), folder=tmp_path, timeout=250)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for facts in ranks:
        for trained in facts.values():
            assert trained["loaders"] == {"train": ["train", "running"], "eval": "eval"}
            assert len(trained["eval"]) == 2
        assert facts["resumed"]["train"] == facts["whole"]["train"][3:]
    for how in ("whole", "stream"):
        epoch = [sample for facts in ranks for batch in facts[how]["train"][:5] for sample in batch]
        assert sorted(epoch) == list(range(40)), how
