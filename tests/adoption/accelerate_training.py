"""A training with Accelerate that writes down what it saw; run by `test_accelerate.py`, alone and under torchrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from penstock import DataLoader
from torch.utils.data import IterableDataset, TensorDataset


class Numbers(IterableDataset[int]):
    """Cannot save its position."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(16))


def make_loader(workers: int) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(torch.arange(44)), batch_size=4, shuffle=True, num_workers=workers, name="train", max_retries=7
    )


def batches(prepared: Any) -> list[list[int]]:
    return [batch.tolist() for (batch,) in prepared]


def main(folder: Path) -> None:
    set_seed(0)
    accelerator: Any = Accelerator(cpu=True)
    layer = torch.nn.Linear(1, 1)
    accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.1))
    train = accelerator.prepare(make_loader(2))
    seen = []
    ends = []
    for (batch,) in train:
        seen.append(batch.tolist())
        ends.append(accelerator.gradient_state.end_of_dataloader)
        if len(seen) == 2:
            train.resize(1)
            accelerator.save_state(str(folder / "state"))
    second = batches(train)
    facts = {
        "ours": type(train.base_dataloader) is DataLoader,
        "drop-in": isinstance(train, DataLoader),
        "prefetch_factor": train._penstock.given_prefetch_factor(),
        "max_retries": train.max_retries,
        "workers": train.num_workers,
        "yielded": train.stats().batches,
        "seen": seen,
        "ends": ends,
        "second": second,
    }
    # As a fresh process would go on, with another number of workers.
    accelerator._dataloaders.clear()
    again = accelerator.prepare(make_loader(1))
    accelerator.load_state(str(folder / "state"))
    skipping = accelerator.skip_first_batches(again, 2)  # by those who do not trust the state: it is not done twice
    facts["skipped"] = {
        "rest": batches(skipping),
        "name": skipping.stats and skipping.name,
        "whole": len(batches(again)),
    }
    accelerator.load_state(str(folder / "state"))
    facts |= {"rest": batches(again), "second again": batches(again)}
    unsaveable = accelerator.prepare(DataLoader(Numbers(), batch_size=4, num_workers=1))
    facts["iterable"] = [number for batch in unsaveable for number in batch.tolist()]
    accelerator.save_state(str(folder / "without"))
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(facts))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
