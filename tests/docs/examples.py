"""What surrounds the README's Python examples when they are run: what a reader has already, and what was promised."""

from __future__ import annotations

from dataclasses import dataclass

DATA = """
import torch
from torch.utils.data import TensorDataset
from penstock import DataLoader
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(1024, 8), torch.randn(1024, 1))
"""

MODEL = """
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
"""


@dataclass(frozen=True)
class Example:
    before: str = ""
    after: str = ""
    package: str = "torch"
    """Without it the example cannot run."""
    loader: str = ""
    """The dashboard must have seen a loader of this name."""


EXAMPLES = {
    "plain": Example(DATA, "assert train.stats().batches == 16 and isinstance(train, torch.utils.data.DataLoader)"),
    "watch": Example(
        DATA + "existing_loader = torch.utils.data.DataLoader(dataset, batch_size=64, num_workers=1)",
        "assert len(batch) == 2",
        loader="train",
    ),
    "tune": Example(
        DATA + "train = DataLoader(dataset, batch_size=8, num_workers=2)\nbatches = iter(train)\nnext(batches)",
        "assert train.stats().target == 8 and train.stats().state == 'running'\n"
        "assert sum(1 for batch in batches) == 127\nassert train.num_workers == 8",
    ),
    "save": Example(
        DATA + MODEL + "import tempfile\npath = tempfile.mkdtemp() + '/state.pt'\n"
        "train = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2)\n"
        "batches = iter(train)\nfor _ in range(5):\n    next(batches)",
        "assert torch.equal(batch[0], list(batches)[-1][0]), 'the last batch is another one'\n"
        "assert train.stats().batches == 11",
    ),
    "lightning": Example(
        DATA + "import os, tempfile, lightning\nos.chdir(tempfile.mkdtemp())\n"
        "class Module(lightning.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(8, 1)\n"
        "    def training_step(self, batch, _):\n"
        "        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), 0.01)\n"
        "module = Module()\n",
        "assert train.stats().batches == 32 and trainer.train_dataloader is train",
        package="lightning",
    ),
    "accelerate": Example(
        "import os\nos.environ['ACCELERATE_USE_CPU'] = 'true'" + DATA + MODEL,
        "assert train.stats().batches == 16 and isinstance(train, DataLoader)",
        package="accelerate",
    ),
    "ready": Example(
        DATA,
        "values = torch.arange(4000).reshape(1000, 4)\n"
        "for workers in (0, 2):\n    train = DataLoader(Table(values), 64, num_workers=workers)\n"
        "    assert all(torch.equal(batch['values'][:, 0], 4 * batch['index']) for batch in train)\n"
        "    assert train.stats().samples == 1000",
    ),
    "notebook": Example(DATA, "", package="nbclient", loader="train"),
}
"""By the name in the comment above the block."""
