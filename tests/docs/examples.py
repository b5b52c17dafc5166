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

ADOPTED = """
import os
os.environ["PENSTOCK_AUTO"] = "no-dashboard"
import torch
"""

MODEL = """
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
"""


AGENTS = """
import os
from contextlib import ExitStack
from penstock.pool.crews.remote import dialing
from tests.loader.agent.agents import SECRET, agents
running = ExitStack()
started = iter(running.enter_context(agents(2)))
where = {name: ("127.0.0.1", int(next(started).address.split(":")[1])) for name in ("10.0.0.7", "10.0.0.8")}
dialing.parsed = lambda address: where[address.split(":")[0]]  # the example's machines are on this one
os.environ["PENSTOCK_AGENT_TOKEN"] = SECRET
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
    "threads": Example(DATA, "assert len(list(train)) == 16 and train.stats().queues.slots_bytes == 0"),
    "agents": Example(
        DATA + AGENTS,
        "assert len(list(train)) == 16 and train.stats().target == 6\ntrain.close()\nrunning.close()",
    ),
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
    "profile": Example(
        DATA
        + "import os, tempfile\nos.chdir(tempfile.mkdtemp())\ntrain = DataLoader(dataset, batch_size=8, num_workers=2)",
        "assert os.path.getsize('epoch.speedscope.json') > 100 and train.stats().batches == 128",
    ),
    "save": Example(
        DATA + MODEL + "import tempfile\npath = tempfile.mkdtemp() + '/state.pt'\n"
        "train = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2)\n"
        "batches = iter(train)\nfor _ in range(5):\n    next(batches)",
        "assert torch.equal(batch[0], list(batches)[-1][0]), 'the last batch is another one'\n"
        "assert train.stats().batches == 11",
    ),
    "tolerate": Example(
        DATA + "import os, tempfile\nos.chdir(tempfile.mkdtemp())\n"
        "class Images(torch.utils.data.Dataset):\n    def __len__(self):\n        return 256\n"
        "    def __getitem__(self, index):\n        if index == 70:\n            raise OSError('broken')\n"
        "        return index\ndataset = Images()\n",
        "assert train.stats().samples == 256 and open('bad.jsonl').read().startswith('{\"index\": 70')",
    ),
    "ranks": Example(
        DATA + "from penstock import DistributedSampler\nstates = []\n"
        "for rank in range(4):\n    sampler = DistributedSampler(dataset, 4, rank)\n"
        "    old = DataLoader(dataset, batch_size=32, sampler=sampler)\n"
        "    batches = iter(old)\n    next(batches)\n    states.append(old.state_dict())\n",
        "assert sum(len(batch[0]) for batch in train) == (1024 - 128) / 2",
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
    "trainer": Example(
        ADOPTED + "import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.environ['ACCELERATE_USE_CPU'] = 'true'\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(8, 1)\n"
        "    def forward(self, x):\n        return {'loss': self.layer(x).pow(2).mean()}\n"
        "model, dataset = Model(), [{'x': torch.randn(8)} for _ in range(32)]\n",
        "assert trainer.callback_handler.train_dataloader.stats().batches == 8",
        package="transformers",
    ),
    "timm": Example(
        ADOPTED + "import tempfile, pathlib\nfrom PIL import Image\nfolder = tempfile.mkdtemp()\n"
        "for kind in 'ab':\n    pathlib.Path(folder, kind).mkdir()\n"
        "    [Image.new('RGB', (32, 32)).save(pathlib.Path(folder, kind, f'{n}.jpg')) for n in range(64)]\n",
        "assert len(list(train)) == 2 == train.stats().batches",
        package="timm",
    ),
    "webdataset": Example(
        ADOPTED + "import io, tarfile, tempfile\nshards = [tempfile.mkdtemp() + f'/{n}.tar' for n in range(2)]\n"
        "for shard in shards:\n    with tarfile.open(shard, 'w') as archive:\n        for number in range(100):\n"
        "            entry = tarfile.TarInfo(f'{number:04}.cls')\n            entry.size = 1\n"
        "            archive.addfile(entry, io.BytesIO(b'7'))\n"
        "epochs = []\nfrom penstock.engine import Engine\nbegin = Engine.begin\n"
        "Engine.begin = lambda engine: (epochs.append(engine.loader), begin(engine))",
        "assert len(batch[0]) == 36 and epochs[0].stats().batches == 4",
        package="webdataset",
    ),
    "pyg": Example(
        ADOPTED + "from torch_geometric.data import Data\nedges = torch.tensor([[0, 1], [1, 0]])\n"
        "graphs = [Data(x=torch.full((2, 1), float(n)), edge_index=edges) for n in range(64)]",
        "assert train.stats().batches == 2 and batch.num_graphs == 32 and batch.edge_index.shape == (2, 64)",
        package="torch_geometric",
    ),
    "cached": Example(
        DATA + "augment = lambda sample: (sample[0] + torch.rand(8), sample[1])",
        # A batch may be made twice, where a task was given to another worker at the moment its own took it up.
        "for _ in range(2):\n    batches = list(train)\n"
        "cache = train.stats().cache\nassert cache.misses >= 1024 and cache.hits >= 1024, cache",
    ),
    "notebook": Example(DATA, "", package="nbclient", loader="train"),
}
"""By the name in the comment above the block."""
