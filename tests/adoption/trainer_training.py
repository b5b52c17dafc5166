"""A program of somebody who has not heard of Penstock: Hugging Face's Trainer, resumed in the midst of an epoch.

Run by `test_trainer.py` under `penstock run torchrun`; what it saw is written down by each rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    """Notes the samples of every batch that it is trained on, and of every one that it is judged by."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: dict[bool, list[list[int]]] = {True: [], False: []}

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen[self.training].append(x.int().flatten().tolist())
        return {"loss": (self.layer(x) - labels).pow(2).mean()}


class Loaders(TrainerCallback):  # type: ignore[misc]
    """Notes by which loaders the Trainer was fed."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def on_step_end(self, *_: Any, train_dataloader: Any, **__: Any) -> None:
        self.names["train"] = [train_dataloader.name, train_dataloader.stats().state]

    def on_evaluate(self, *_: Any, eval_dataloader: Any, **__: Any) -> None:
        if eval_dataloader is not None:
            self.names["eval"] = eval_dataloader.name


def dataset(length: int) -> Any:
    columns = {"x": [[float(number)] for number in range(length)], "labels": [[0.0]] * length}
    return datasets.Dataset.from_dict(columns).with_format("torch")


def train(folder: Path, stream: bool, resume: str | None = None) -> Any:
    model, loaders = Model(), Loaders()
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=8,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=3,
        learning_rate=1e-6,
        dataloader_num_workers=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = dataset(40).to_iterable_dataset(num_shards=4) if stream else dataset(40)
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=dataset(16), callbacks=[loaders])
    trainer.train(resume_from_checkpoint=resume)
    return {"train": model.seen[True], "eval": model.seen[False], "loaders": loaders.names}


def main(folder: Path) -> None:
    checkpoint = str(folder / "map" / "checkpoint-3")
    facts = {
        "whole": train(folder / "map", stream=False),
        "resumed": train(folder / "map", stream=False, resume=checkpoint),
        "stream": train(folder / "stream", stream=True),
    }
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(facts))
    # Who leaves it to the end of the interpreter is ended by SIGABRT now and then: Gloo's threads want Python then
    # (pytorch #190489).
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
