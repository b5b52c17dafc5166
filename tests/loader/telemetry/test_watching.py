from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import penstock
import pytest
import torch
import torch.utils.data
from penstock.protocol import EpochEvent, Stall, WorkerEvent
from penstock.telemetry import torch_source
from penstock.telemetry.torch_source import TorchSource
from penstock.telemetry.watched_epoch import follow
from penstock.telemetry.watching import watch
from torch.utils.data import Dataset, IterableDataset

from tests.loader.support import ROOT, Samples, Stream
from tests.loader.telemetry.servers import GoodServer, until
from tests.patience import PATIENCE

Torch = torch.utils.data.DataLoader


class FirstIsSlow(Dataset[Any]):
    """Sample 4 waits until it is told, so that the later ones are finished before it."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 4:
            self.gate.wait(PATIENCE)
        return index


def source_of(loader: Any) -> TorchSource:
    source = loader._penstock._source
    assert isinstance(source, TorchSource)
    return source


def batches(loader: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Samples("int", 20), Stream("int", 20)])
def test_the_batches_are_torch_s(server: GoodServer, workers: int, dataset: Any) -> None:
    arguments: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "persistent_workers": workers > 0}
    if not isinstance(dataset, IterableDataset):
        arguments["shuffle"] = True
    torch.manual_seed(1)
    expected = [batches(plain) for plain in [Torch(dataset, **arguments)] for _ in range(2)]
    torch.manual_seed(1)
    watched = watch(Torch(dataset, **arguments), monitor=server.url)
    assert [batches(watched) for _ in range(2)] == expected
    count = sum(map(len, expected))
    snapshot = until(lambda: next((s for s in server.only.snapshots if s.batches == count), None))
    assert snapshot.samples == 40 and snapshot.bytes == 40 * 8
    assert snapshot.epoch == 1 and snapshot.state == "finished"
    del watched
    gc.collect()
    until(lambda: server.only.said_goodbye)
    config = server.only.hello.config
    assert (config.engine, config.control, config.num_workers) == ("torch", False, workers)
    epochs = [event.what for event in server.only.events if isinstance(event, EpochEvent)]
    assert epochs == ["started", "ended"] * 2


def test_it_stays_the_same_object_of_the_same_kind(server: GoodServer) -> None:
    class Own(Torch):  # type: ignore[type-arg]
        pass

    plain = Own(Samples("int", 6), batch_size=2)
    watched = watch(plain, monitor=server.url)
    assert watched is plain and isinstance(watched, Own) and type(watched).__name__ == "Own"
    assert len(watched) == 3 and watch(watched, monitor=server.url) is watched
    assert len(iter(watched)) == 3
    with pytest.raises(ValueError, match="batch_size"):
        watched.batch_size = 3
    copied = copy.deepcopy(watched)
    assert type(copied) is Own and batches(copied) == batches(watched)
    assert type(type(watched)(Samples("int", 2))) is type(watched)
    assert batches(type(watched)(Samples("int", 2))) == [[0], [1]]


def test_a_pickle_of_it_is_an_ordinary_loader(server: GoodServer) -> None:
    watched = watch(Torch(Samples("int", 6), batch_size=2), monitor=server.url)
    iter(watched)
    loaded = pickle.loads(pickle.dumps(watched))
    assert type(loaded) is Torch and batches(loaded) == batches(watched)


def test_without_anywhere_to_publish_to_it_is_left_alone() -> None:
    plain = Torch(Samples("int", 6))
    assert watch(plain) is plain and watch(plain, monitor=False) is plain
    assert type(plain) is Torch


def test_what_it_does_not_take(server: GoodServer) -> None:
    with pytest.raises(TypeError, match="iterated"):
        watch(3, monitor=server.url)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="publishes by itself"):
        watch(penstock.DataLoader(Samples("int", 6)), monitor=server.url)
    with pytest.raises(ValueError, match="monitor"):
        watch(Torch(Samples("int", 6)), monitor="nowhere")
    with pytest.raises(ValueError, match="publish_interval"):
        watch(Torch(Samples("int", 6)), monitor=server.url, publish_interval=0)


def test_a_reorder_stall_is_seen_with_its_culprit(server: GoodServer) -> None:
    gate = torch.multiprocessing.get_context("fork").Event()
    watched = watch(
        Torch(FirstIsSlow(gate), batch_size=2, num_workers=2, prefetch_factor=2, multiprocessing_context="fork"),
        monitor=server.url,
        publish_interval=0.02,
    )
    source, iterator = source_of(watched), iter(watched)
    next(iterator)
    next(iterator)

    def stalled() -> None:
        until(lambda: any(s.queues.reorder >= 1 for s in server.only.snapshots), "a batch in the reorder buffer")
        gate.set()

    helper = threading.Thread(target=stalled)
    helper.start()
    assert [batch.tolist() for batch in iterator] == [[4, 5], [6, 7], [8, 9], [10, 11]]
    helper.join()
    stall = until(lambda: next((e for e in server.only.events if isinstance(e, Stall) and e.batch == 2), None))
    assert stall.worker == 0 and stall.held_back >= 1
    times = source.snapshot(0).times
    assert times.reorder_stall_us >= stall.us > 0
    seen = next(s for s in server.only.snapshots if s.queues.reorder)
    assert seen.queues.window == 4 and seen.queues.in_flight <= 4 + seen.queues.reorder
    assert {worker.state for worker in seen.workers} <= {"fetching", "idle"}
    assert all(worker.rss > 0 for worker in seen.workers)


def test_every_moment_is_counted_once() -> None:
    source = TorchSource(Torch(Samples("int", 6)), "train")
    epoch = follow(source, iter(range(5)))
    began = time.monotonic()
    for _ in epoch:
        time.sleep(0.01)
    wall = (time.monotonic() - began) * 1e6
    times = source.snapshot(0).times
    total = sum(getattr(times, name) for name in times.__struct_fields__)
    assert 5 * 10_000 <= times.compute_us <= total <= wall


def test_an_epoch_left_early_ends_its_workers_as_torch_does(server: GoodServer) -> None:
    watched = watch(Torch(Samples("int", 50), num_workers=2), monitor=server.url, publish_interval=0.02)
    for _ in watched:
        break
    until(lambda: len([e for e in server.only.events if isinstance(e, EpochEvent)]) == 2)
    events = server.only.events
    assert [e.what for e in events if isinstance(e, EpochEvent)] == ["started", "abandoned"]
    pids = [e.pid for e in events if isinstance(e, WorkerEvent) and e.what == "born"]
    assert len(pids) == 2
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))  # noqa: PTH110


def test_a_loader_that_only_its_iterator_keeps_is_not_gone(server: GoodServer) -> None:
    iterator = iter(watch(Torch(Samples("int", 8), batch_size=2), monitor=server.url, publish_interval=0.02))
    gc.collect()
    next(iterator)
    until(lambda: any(snapshot.batches == 1 for snapshot in server.only.snapshots))
    assert not server.only.said_goodbye
    del iterator
    gc.collect()
    until(lambda: server.only.said_goodbye)


class Fails(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise LookupError("sample 2 is missing")
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_dataset_is_the_same_and_is_told(server: GoodServer, workers: int) -> None:
    watched = watch(Torch(Fails(), num_workers=workers), monitor=server.url)
    with pytest.raises(LookupError, match="sample 2 is missing"):
        batches(watched)
    failed = until(lambda: [e for e in server.only.events if isinstance(e, EpochEvent) and e.what == "failed"])
    assert "sample 2 is missing" in failed[0].reason and failed[0].batches == 2


KILLING = """
import os, signal, sys
import torch.utils.data
from penstock.telemetry.watching import watch

class Names:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return os.getpid()

# No tensors: a worker that dies takes the descriptors of those that it has sent with it, which fails in other ways.
loader = torch.utils.data.DataLoader(Names(), num_workers=1, collate_fn=list, multiprocessing_context="fork")
try:
    for (pid,) in watch(loader, monitor=sys.argv[1]):
        os.kill(pid, signal.SIGKILL)
except RuntimeError as error:
    print("failed:", error, flush=True)
    loader._penstock._publisher.close(10)
    os._exit(0)  # torch itself takes many seconds to clear up
"""


def test_a_killed_worker_is_torch_s_error_and_is_told(server: GoodServer) -> None:
    """In a process of its own: torch raises the error in whatever the main thread does when the signal comes."""
    script = [sys.executable, "-c", KILLING, server.url]
    done = subprocess.run(script, cwd=ROOT, timeout=PATIENCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "DataLoader worker" in done.stdout, done.stderr
    (died,) = (e for e in server.only.events if isinstance(e, WorkerEvent) and e.what == "died")
    assert (died.exitcode, died.signal) == (-signal.SIGKILL, "SIGKILL")


def test_a_loader_that_iterates_in_its_own_way_is_watched_too(server: GoodServer) -> None:
    class Twice(Torch):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            for batch in super().__iter__():
                yield batch
                yield batch

    watched = watch(Twice(Samples("int", 3)), monitor=server.url)
    assert batches(watched) == [[0], [0], [1], [1], [2], [2]]
    until(lambda: any(snapshot.batches == 6 for snapshot in server.only.snapshots))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_into_a_loader_amidst_an_epoch_is_another_epoch(workers: int) -> None:
    plain = Torch(Samples("int", 30), num_workers=workers)
    source = TorchSource(plain, "train")
    began = time.monotonic()
    epoch = follow(source, iter(plain))
    for number, _ in enumerate(epoch, 1):
        time.sleep(0.005)
        if number == 10:
            next(follow(source, iter(plain)))
        if number > 10:
            stats = source.snapshot(0)
            assert (stats.state, stats.epoch, stats.batch, stats.batches) == ("running", 0, number, number + 1)
            assert len(stats.workers) == workers
    wall = (time.monotonic() - began) * 1e6
    stats = source.snapshot(0)
    assert (stats.state, stats.batch) == ("finished", 30)
    times = stats.times
    total = sum(getattr(times, name) for name in times.__struct_fields__)
    assert 30 * 5000 <= times.compute_us <= total <= wall
    time.sleep(0.05)
    assert source.snapshot(0).times == times, "the clock stands still"


@pytest.mark.parametrize("workers", [0, 1])
def test_time_after_an_error_that_training_caught_is_counted(workers: int) -> None:
    source = TorchSource(plain := Torch(Fails(), num_workers=workers), "train")
    epoch = follow(source, iter(plain))
    assert [int(next(epoch)), int(next(epoch))] == [0, 1]
    with pytest.raises(LookupError):
        next(epoch)
    assert source.snapshot(0).state == "failed"
    before = source.snapshot(0).times.compute_us
    time.sleep(0.1)
    assert int(next(epoch)) == 3
    assert source.snapshot(0).state == "running"
    assert source.snapshot(0).times.compute_us - before >= 90_000
    with pytest.raises(StopIteration):
        next(epoch)
    assert source.snapshot(0).state == "finished"
    whats = [event.what for event in source.take_events() if isinstance(event, EpochEvent)]
    assert whats == ["started", "failed", "ended"]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_s_batches_are_those_that_training_got(persistent: bool) -> None:
    plain = Torch(Stream("int", 20), num_workers=2, persistent_workers=persistent)
    source = TorchSource(plain, "train")
    for epoch in range(2):
        watched = follow(source, iter(plain))
        for _ in range(20):
            next(watched)
        expected = 10 * (epoch + 1 if persistent else 1)
        assert [worker.batches for worker in source.snapshot(0).workers] == [expected, expected]
        with pytest.raises(StopIteration):
            next(watched)
        del watched
    if not persistent:
        until(lambda: source.snapshot(0) and not source._workers)
        events = [event for event in source.take_events() if isinstance(event, WorkerEvent)]
        born, retired = ({e.pid for e in events if e.what == what} for what in ("born", "retired"))
        assert len(born) == 4 and born == retired
    plain._iterator = None


def test_the_collector_may_end_an_epoch_while_workers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TorchSource(plain := Torch(Samples("int", 20), num_workers=1), "train")
    epochs = [follow(source, iter(plain)) for _ in range(2)]
    for epoch in epochs:
        next(epoch)
    del epoch
    real, looked = torch_source._exit_status, []

    def collect(pid: int, process: Any) -> int | None:
        looked.append(pid)
        if len(epochs) == 2:
            del epochs[0]
        return real(pid, process)

    monkeypatch.setattr(torch_source, "_exit_status", collect)
    assert len(source.snapshot(0).workers) == 1
    assert len(epochs) == 1 and len(looked) >= 3
    assert [event.what for event in source.take_events() if isinstance(event, EpochEvent)].count("abandoned") == 1
