"""Batches a second from another node of a Ray cluster: our workers, Ray's own actors, and ray.data.

All make the same batches from the same dataset, in order, on as many processes of the same node, and training is on
the head, which has no processors. Ray's ways are written as Ray's own documentation advises: the dataset goes there
once; batches travel as arrays, which Ray's object store hands over without a copy, and tensors does not; as many tasks
are under way as with us; several are asked for at a time.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch.utils.data
from penstock import DataLoader, RayWorkers
from torch.utils.data import default_collate

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import LEAST_SECONDS, time_epoch, warm_up
from tests.benchmarks.workloads import WORKLOADS, Samples, Workload
from tests.loader.support import assert_same
from tests.ray_cluster import RayCluster

STORE = 3 << 30
"""Bytes of each node's object store: enough for all that is under way of the largest batches."""


@dataclass(frozen=True)
class Knobs:
    """What is set of Ray's for a workload; every batch comes alone from `ray actors`."""

    under_way: int
    """Batches that may be under way. With us there are 512, or as many as the memory budget has room for."""
    at_a_time: int
    """Batches that training asks for at a time, so that they come side by side."""
    in_a_call: int
    """Batches that a call of `ray actors, several a call` makes."""
    in_a_block: int
    """Batches in a block of ray.data."""
    prefetched: int
    """Batches that ray.data's iterator has fetched before training asks."""


KNOBS = {
    "sleep": Knobs(512, 1, 4, 8, 16),
    "dict20": Knobs(512, 16, 8, 15, 16),
    "tiny64": Knobs(512, 32, 32, 250, 64),
    "tiny1": Knobs(512, 32, 64, 2000, 64),
    "big": Knobs(24, 4, 1, 1, 4),
}


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int) -> Measures:
    spec, opened = WORKLOADS[workload], OPENERS[variant]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    # One processor more than workers: ray.data reads indices in a task of its own.
    cluster = RayCluster(nodes=1, processors=workers + 1, store=STORE)
    try:
        with opened(cluster.address, dataset, spec, workers, KNOBS[workload]) as loader:
            first_batch = warm_up(Checked(loader, dataset, spec), spec, dataset)
            count = max(batches // 4, 2 * workers) if quick else batches
            gc.collect()
            timing = _timed_midway if variant == "ray.data" else _timed_epochs
            rate = timing(loader, spec, dataset, count, LEAST_SECONDS / 4 if quick else LEAST_SECONDS)
    finally:
        cluster.end()
    return {"batches_per_s": rate, "first_batch_s": first_batch}


class Checked:
    """Batches that are compared with torch's, one by one."""

    def __init__(self, loader: Iterable[Any], dataset: Samples, spec: Workload) -> None:
        self._loader = loader
        self._torchs = torch.utils.data.DataLoader(dataset, spec.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for batch, torchs in zip(self._loader, self._torchs, strict=True):
            assert_same(batch, torchs)
            yield batch


def _timed_epochs(loader: Iterable[Any], spec: Workload, dataset: Samples, batches: int, least: float) -> float:
    """Batches a second of whole epochs."""
    dataset.length = spec.batch_size * batches
    timed, seconds = 0, 0.0
    while seconds < least:
        counted, elapsed = time_epoch(loader, spec, dataset)
        timed, seconds = timed + counted, seconds + elapsed
    return timed / seconds


def _timed_midway(loader: Iterable[Any], spec: Workload, dataset: Samples, batches: int, least: float) -> float:  # noqa: ARG001
    """The same within an epoch that is twice as long: every one has its workers started again, and ends with what was
    made ahead."""
    dataset.length = spec.batch_size * 2 * batches
    came = iter(loader)
    for _ in islice(came, batches // 2):
        pass
    samples, start = 0, time.perf_counter()
    for batch in islice(came, batches):
        samples += spec.size(batch)
    seconds = time.perf_counter() - start
    for _ in came:  # its threads must not outlive Ray
        pass
    if samples != batches * spec.batch_size:
        raise RuntimeError(f"{samples} samples came in {batches} batches of {spec.batch_size}")
    return batches / seconds


# -- ours -----------------------------------------------------------------------------------------------------------


@contextmanager
def ray_workers(address: str, dataset: Samples, spec: Workload, workers: int, knobs: Knobs) -> Iterator[Any]:  # noqa: ARG001
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=spec.batch_size,
        num_workers=workers,
        workers=RayWorkers(address),
        persistent_workers=True,
        monitor=False,
        refresh="never",
        prefetch_epochs=False,  # timed epochs begin with nothing made in advance, as everybody's do
    )
    try:
        yield loader
    finally:
        loader.close()


# -- Ray's actors ----------------------------------------------------------------------------------------------------


class Maker:
    """What each actor does."""

    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def make(self, batch: range) -> Any:
        return _arrays(default_collate([self.dataset[index] for index in batch]))

    def make_several(self, batches: list[range]) -> list[Any]:
        return [self.make(batch) for batch in batches]


class FromActors:
    """An epoch's batches in order, from a pool of actors that stay."""

    def __init__(self, dataset: Samples, spec: Workload, workers: int, knobs: Knobs, in_a_call: int) -> None:
        import ray

        self._ray: Any = ray
        self._dataset, self._size, self._in_a_call = dataset, spec.batch_size, in_a_call
        self._under_way = max(knobs.under_way // in_a_call, workers)
        self._at_a_time = max(knobs.at_a_time // in_a_call, 1)
        kind, there = ray.remote(num_cpus=1)(Maker), ray.put(dataset)
        self._actors = [kind.remote(there) for _ in range(workers)]

    def __iter__(self) -> Iterator[Any]:
        to_ask = self._calls()
        asked = deque(islice(to_ask, self._under_way))
        while asked:
            some = [asked.popleft() for _ in range(min(self._at_a_time, len(asked)))]
            for made in self._ray.get(some):
                for batch in made if self._in_a_call > 1 else (made,):
                    yield _tensors(batch)
            asked.extend(islice(to_ask, len(some)))

    def _calls(self) -> Iterator[Any]:
        """Every next call, given to the actors in turn: each has many before it, and all samples cost alike."""
        length, step = len(self._dataset), self._size
        batches = iter([range(first, min(first + step, length)) for first in range(0, length, step)])
        number = 0
        while some := list(islice(batches, self._in_a_call)):
            actor = self._actors[number % len(self._actors)]
            yield actor.make_several.remote(some) if self._in_a_call > 1 else actor.make.remote(some[0])
            number += 1


@contextmanager
def actors(address: str, dataset: Samples, spec: Workload, workers: int, knobs: Knobs) -> Iterator[Any]:
    with _driver(address):
        yield FromActors(dataset, spec, workers, knobs, in_a_call=1)


@contextmanager
def actors_several(address: str, dataset: Samples, spec: Workload, workers: int, knobs: Knobs) -> Iterator[Any]:
    with _driver(address):
        yield FromActors(dataset, spec, workers, knobs, knobs.in_a_call)


# -- ray.data --------------------------------------------------------------------------------------------------------


class Fetch:
    """What each actor of ray.data does: from a batch of indices to one of samples, by columns."""

    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        arrays = _arrays(default_collate([self.dataset[index] for index in rows["id"].tolist()]))
        return arrays if isinstance(arrays, dict) else {"batch": arrays}


class FromData:
    """An epoch's batches in order, from ray.data."""

    def __init__(self, dataset: Samples, spec: Workload, workers: int, knobs: Knobs) -> None:
        import ray.data

        self._data: Any = ray.data
        self._dataset, self._size, self._workers, self._knobs = dataset, spec.batch_size, workers, knobs
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False

    def __iter__(self) -> Iterator[Any]:
        length = len(self._dataset)
        blocks = -(-length // (self._size * self._knobs.in_a_block))
        rows = self._data.range(length, override_num_blocks=blocks).map_batches(
            Fetch,
            fn_constructor_args=(self._dataset,),
            batch_size=self._size,
            batch_format="numpy",
            compute=self._data.ActorPoolStrategy(size=self._workers),
            num_cpus=1,
        )
        came = rows.iter_batches(batch_size=self._size, batch_format="numpy", prefetch_batches=self._knobs.prefetched)
        for batch in came:
            tensors = _tensors(batch)
            yield tensors.get("batch", tensors)


@contextmanager
def data(address: str, dataset: Samples, spec: Workload, workers: int, knobs: Knobs) -> Iterator[Any]:
    with _driver(address):
        yield FromData(dataset, spec, workers, knobs)


# -- what Ray's ways share -------------------------------------------------------------------------------------------


def _arrays(batch: Any) -> Any:
    """As it travels."""
    return {key: value.numpy() for key, value in batch.items()} if isinstance(batch, dict) else batch.numpy()


def _tensors(arrays: Any) -> Any:
    """As training wants it. They share the arrays' memory, which must not be written to: torch warns of that."""
    if isinstance(arrays, dict):
        return {key: torch.from_numpy(value) for key, value in arrays.items()}
    return torch.from_numpy(arrays)


@contextmanager
def _driver(address: str) -> Iterator[None]:
    """This process as one that uses the cluster."""
    import ray

    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


OPENERS: dict[str, Callable[[str, Samples, Workload, int, Knobs], AbstractContextManager[Any]]] = {
    "workers": ray_workers,
    "ray actors": actors,
    "ray actors, several a call": actors_several,
    "ray.data": data,
}
