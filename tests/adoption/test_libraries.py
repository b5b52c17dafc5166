"""Libraries with loaders or datasets of their own, after `import penstock.auto`: not a line of theirs changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adoption.support import needs
from tests.loader.support import Script, Template

START = """
import io, logging, os, sys
os.environ["PENSTOCK_AUTO"] = "no-dashboard"
said = io.StringIO()
logging.getLogger("penstock").addHandler(logging.StreamHandler(said))
import penstock.auto
import torch
from torch.utils.data import DataLoader
"""

DATASETS = """
import datasets
numbers = datasets.Dataset.from_dict({"x": list(range(24))}).with_format("torch")
train = DataLoader(numbers, batch_size=4, num_workers=2)
assert [batch["x"].tolist() for batch in train] == [list(range(n, n + 4)) for n in range(0, 24, 4)]
stream = DataLoader(numbers.to_iterable_dataset(num_shards=4), batch_size=4, num_workers=2)
assert sorted(number for batch in stream for number in batch["x"].tolist()) == list(range(24))
assert (train.stats().batches, train.name) == (6, "train")
assert (stream.stats().samples, stream.name) == (24, "stream")
batches = iter(stream)
first = [next(batches)["x"].tolist() for _ in range(2)]
again = DataLoader(numbers.to_iterable_dataset(num_shards=4), batch_size=4, num_workers=1)
again.load_state_dict(stream.state_dict())
rest = [batch["x"].tolist() for batch in again]
assert sorted(number for batch in first + rest for number in batch) == list(range(24)), (first, rest)
"""

MONAI = """
from monai.data import DataLoader as MonaiLoader, CacheDataset, Dataset, ThreadDataLoader
from monai.transforms import Compose, RandScaleIntensityd, ToTensord
data = [{"image": torch.full((1, 2), float(number))} for number in range(8)]
train_loader = MonaiLoader(Dataset(data, Compose([ToTensord("image")])), batch_size=4, num_workers=2)
assert [batch["image"][:, 0, 0].tolist() for batch in train_loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
assert (train_loader.stats().batches, train_loader.name) == (2, "train")
random = MonaiLoader(Dataset(data, RandScaleIntensityd("image", 0.5, 1.0)), batch_size=8, num_workers=2)
assert len({round(float(i[0, 0] / n), 4) for n, i in enumerate(next(iter(random))["image"]) if n}) > 2
threaded = ThreadDataLoader(Dataset(data), batch_size=4, num_workers=0)
assert len(list(threaded)) == 2 and threaded.stats().batches == 2
"""

STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader
theirs = StatefulDataLoader(list(range(12)), batch_size=4, num_workers=1)
ours = DataLoader(list(range(12)), batch_size=4, num_workers=1)
assert len(theirs) == 3
batches = iter(theirs)
assert next(batches).tolist() == [0, 1, 2, 3]
state = theirs.state_dict()
del batches
theirs.load_state_dict(state)
assert [batch.tolist() for batch in theirs] == [[4, 5, 6, 7], [8, 9, 10, 11]]
assert len(list(ours)) == 3 == ours.stats().batches
assert "StatefulDataLoader iterates in a way of its own" in said.getvalue() and said.getvalue().count("\\n") == 1
"""

LIBRARIES = {"datasets": DATASETS, "monai": MONAI, "torchdata": STATEFUL}


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.mark.parametrize("library", [pytest.param(name, marks=needs(name)) for name in LIBRARIES])
def test_a_library_runs_on_our_engine(library: str, template: Template, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(START + LIBRARIES[library] + "\nprint('reached the end')")
    script = Script(template, f"exec(compile(open({str(path)!r}).read(), {str(path)!r}, 'exec'))")
    try:
        said, complaints = script.finish()
    finally:
        script.end()
    assert said.rstrip().endswith("reached the end"), complaints
