"""Trainings with Lightning that write down what they saw; run by `test_lightning.py`.

With `adopted` as its second argument the loader is torch's own, and Penstock a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import penstock
import torch
import torch.utils.data
from torch.utils.data import TensorDataset

ADOPTED = sys.argv[2:] == ["adopted"]
DataLoader: Any = torch.utils.data.DataLoader if ADOPTED else penstock.DataLoader
if ADOPTED:
    import penstock.auto

ARGUMENTS: dict[str, Any] = {"name": "train", "monitor": False, "publish_interval": 0.5, "max_retries": 7}


class Module(lightning.LightningModule):  # type: ignore[misc]
    """Notes the samples of every batch; saves a checkpoint after `save_at` batches if it is told to."""

    def __init__(self, save_at: int = -1, checkpoint: str = "") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []
        self.save_at = save_at
        self.checkpoint = checkpoint

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen.append(batch[0].tolist())
        loss: torch.Tensor = self.layer(batch[0].float().unsqueeze(1)).pow(2).mean()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.seen) == self.save_at:
            self.trainer.save_checkpoint(self.checkpoint)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-6)


class Ranks(Module):
    """Each rank writes to a file of its own what became of the loader, and what it gave."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_train_end(self) -> None:
        train: Any = self.trainer.train_dataloader
        facts = {
            "ours": type(train) is DataLoader and train.stats().batches == len(self.seen),
            "prefetch_factor": train._penstock.given_prefetch_factor(),
            "arguments": {name: getattr(train, name) for name in ARGUMENTS},
            "workers": train.num_workers,
            "seen": self.seen,
        }
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(facts))


def make_loader() -> Any:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(
        TensorDataset(torch.arange(48)), batch_size=4, shuffle=True, num_workers=2, generator=generator, **ARGUMENTS
    )


def fit(module: Module, checkpoint: str | None = None, **trainer: Any) -> list[list[int]]:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    lightning.Trainer(accelerator="cpu", max_epochs=2, **quiet, **trainer).fit(
        module, make_loader(), ckpt_path=checkpoint
    )
    return module.seen


def one(folder: Path) -> Any:
    """One process: all of it, then the rest of it from a checkpoint inside the first epoch."""
    checkpoint = str(folder / "some.ckpt")
    whole = fit(Module(save_at=5, checkpoint=checkpoint), devices=1)
    return {"whole": whole, "rest": fit(Module(), checkpoint, devices=1)}


def two(folder: Path) -> Any:
    fit(Ranks(folder), devices=2, strategy="ddp_fork")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


if __name__ == "__main__":
    where = Path(sys.argv[1])
    facts = {"two": two(where)} if ADOPTED else {"two": two(where), "one": one(where)}
    (where / "facts.json").write_text(json.dumps(facts))
