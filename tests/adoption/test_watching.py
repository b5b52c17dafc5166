"""`watch` of other libraries' own loaders: they train as before, and what is inside them is seen."""

from __future__ import annotations

import importlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from penstock.protocol import Snapshot
from penstock.telemetry.watching import watch

from tests.adoption.support import needs
from tests.loader.telemetry.conftest import private, server  # noqa: F401
from tests.loader.telemetry.servers import GoodServer, until

pytestmark = pytest.mark.timeout(120)


def final(server: GoodServer, batches: int) -> Snapshot:  # noqa: F811
    found = until(lambda: next((s for s in server.only.snapshots if s.batches == batches), None))
    assert isinstance(found, Snapshot)
    return found


@needs("accelerate")
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_accelerate_has_prepared(server: GoodServer, dispatch: bool, workers: int) -> None:  # noqa: F811
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    data: Any = torch.arange(12, dtype=torch.float32)
    prepared = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=2, num_workers=workers))
    watched: Any = watch(prepared, monitor=server.url, publish_interval=0.02)
    drop_in = isinstance(watched, torch.utils.data.DataLoader)
    assert watched is prepared and drop_in
    assert issubclass(type(watched), DataLoaderDispatcher if dispatch else DataLoaderShard)
    ends = []
    for epoch in range(2):
        watched.set_epoch(epoch)
        for number, batch in enumerate(watched):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            ends.append(accelerator.gradient_state.end_of_dataloader)
            if workers:
                until(lambda: any(len(s.workers) == workers for s in server.only.snapshots), "workers on the page")
    assert ends == ([False] * 5 + [True]) * 2, "gradient accumulation relies on it"
    snapshot = final(server, 12)
    assert (snapshot.samples, snapshot.bytes, snapshot.target) == (24, 96, workers)
    assert snapshot.knows("queues.data") and not snapshot.knows("workers.fetch_us")
    config = server.only.hello.config
    assert config.kind == ("DataLoaderDispatcher" if dispatch else "DataLoaderShard")
    skipping = accelerator.skip_first_batches(watched, 2)
    assert [batch[0].item() for batch in skipping] == [4, 6, 8, 10]


def shard(path: Path, count: int) -> str:
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            entry = tarfile.TarInfo(f"{number:04}.cls")
            content = str(number).encode()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return str(path)


@needs("webdataset")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_webdataset(server: GoodServer, workers: int, tmp_path: Path) -> None:  # noqa: F811
    webdataset: Any = importlib.import_module("webdataset")

    url = shard(tmp_path / "0.tar", 8)
    dataset = webdataset.WebDataset(url, shardshuffle=False).decode().to_tuple("cls").batched(2)
    plain = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers)
    expected = [batch[0].tolist() for batch in plain]
    watched = watch(plain, monitor=server.url, publish_interval=0.02)
    assert watched is plain and isinstance(watched, webdataset.WebLoader)
    assert watched.with_epoch(3) is watched
    got = []
    for batch in watched:
        got.append(batch[0].tolist())
        if workers:
            until(lambda: any(len(s.workers) == workers for s in server.only.snapshots), "the worker on the page")
    assert got == expected[:3]
    snapshot = final(server, 3)
    assert snapshot.target == workers and snapshot.length is None
    assert snapshot.knows("samples") and snapshot.samples == 6
    assert server.only.hello.config.kind == "WebLoader"
    shuffled = watched.unbatched().batched(4)
    assert type(shuffled) is webdataset.WebLoader, "a copy is not watched"
    assert len(next(iter(shuffled))[0]) == 4
