"""`import penstock.auto`: torch's class stays what it was to all who look, and loads with our engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.adoption.replacing import _without_collecting

from tests.loader.support import Script, Template

PROGRAM = '''
import copy, gc, io, logging, os, pickle, sys, weakref
os.environ["PENSTOCK_AUTO"] = "no-dashboard"
import torch
import torch.utils.data
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

class Early(DataLoader):
    """Like timm's MultiEpochsDataLoader: one iterator for all epochs."""
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeat(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Own(DataLoader):
    """Names its methods as ours are named, and iterates by torch's iterator."""
    name = "mine"
    def stats(self):
        return "mine"
    def _get_iterator(self):
        return _SingleProcessDataLoaderIter(self)

dataset = TensorDataset(torch.arange(12))
made_before = DataLoader(dataset, batch_size=4)
persistent_before = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
iter(persistent_before)
expected = [batch[0].tolist() for batch in made_before]
same = DataLoader

said = io.StringIO()
logging.getLogger("penstock").addHandler(logging.StreamHandler(said))
import penstock.auto
import penstock

def ours(loader):
    assert [batch[0].tolist() for batch in loader] == expected
    return penstock.DataLoader._penstock.fget(loader).stats().batches

assert torch.utils.data.DataLoader is same is torch.utils.data.dataloader.DataLoader

# Whoever made it, and when.
assert ours(made_before) == 3 and made_before.name == "made_before"
train_loader = DataLoader(dataset, 4, num_workers=2)
assert type(train_loader) is DataLoader and isinstance(iter(train_loader), _BaseDataLoaderIter)
assert ours(train_loader) == 3 and train_loader.stats().target == 2 and train_loader.name == "train"
assert train_loader.resize(1).state == "pending" and len(train_loader) == 3
assert ours(DataLoader[int](dataset, batch_size=4)) == 3
explicit = penstock.DataLoader(dataset, batch_size=4)
assert ours(explicit) == 3 and explicit.name == "loader" and isinstance(explicit, DataLoader)
assert not isinstance(train_loader, penstock.DataLoader)
assert DataLoader(dataset, name="given", max_retries=5).max_retries == 5
deeper = DataLoader(dataset, prefetch_factor=3, num_workers=1)
assert (deeper._penstock.given_prefetch_factor(), train_loader._penstock.given_prefetch_factor()) == (3, None)
try:
    DataLoader(dataset, shuffle=True, sampler=[1])
except ValueError as error:
    assert "mutually exclusive" in str(error)

# One that was under way stays torch's.
assert [batch[0].tolist() for batch in persistent_before] == expected
assert type(persistent_before._iterator) is _MultiProcessingDataLoaderIter

# Subclasses.
repeated = Early(dataset, batch_size=4, num_workers=1)
assert ours(repeated) == 3 and ours(repeated) == 6 and repeated.name == "repeated"
own = Own(dataset, batch_size=4)
assert [batch[0].tolist() for batch in own] == [batch[0].tolist() for batch in own] == expected
assert (own.name, own.stats()) == ("mine", "mine")
class Late(torch.utils.data.DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, batch_size=4, collate_fn=lambda samples: [torch.stack([s[0] for s in samples])])
assert ours(Late(dataset)) == 3

# Copies.
for copied in (copy.copy(train_loader), copy.deepcopy(train_loader), pickle.loads(pickle.dumps(train_loader))):
    assert type(copied) is DataLoader and copied._penstock is not train_loader._penstock
    assert ours(copied) == 3 and copied.name == "train"

# What a function lets go is gone, with its workers, though it has made another loader since.
def training(split):
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    assert ours(loader) == 3
    gone = weakref.ref(loader)
    another = DataLoader(dataset)
    del loader
    return gone() is None and (split, another.name)

assert training("val") == ("val", "another"), training("val")
assert gc.isenabled()

# A state, in the midst of an epoch.
batches = iter(train_loader)
next(batches)
again = DataLoader(dataset, batch_size=4)
again.load_state_dict(train_loader.state_dict())
assert [batch[0].tolist() for batch in again] == expected[1:]
del batches

# What is watched is not watched twice.
assert penstock.watch(train_loader, monitor="http://127.0.0.1:9") is train_loader

told = said.getvalue().splitlines()
assert len(told) == 2 and "Own iterates in a way of its own" in told[1], told
assert "was under way before Penstock was there" in told[0], told
'''


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


def test_everything_that_programs_do_with_the_class_still_holds(template: Template, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "\nprint('reached the end')")
    script = Script(template, f"exec(compile(open({str(path)!r}).read(), {str(path)!r}, 'exec'))")
    try:
        said, complaints = script.finish()
    finally:
        script.end()
    assert said.rstrip().endswith("reached the end"), complaints


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_our_modules_are_loaded_as_it_was_before(collects: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(ImportError), _without_collecting():
            during = gc.isenabled()
            raise ImportError
        after = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
    assert (during, after) == (False, collects)
