"""What a worker shares with others in its process, and what it has for itself: random generators, and who it is told
to be by `get_worker_info()`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.worker import WorkerInfo

from ... import seeding
from ...seeding import Bases, BatchSeeder, Seeder


class Surroundings(Protocol):
    """What a `Workbench` asks of its kind of worker. Everything is called in the worker's own thread."""

    kind: str
    """What a worker of this kind is, in messages."""

    processor_ns: Callable[[], int]
    """Tells the processor time that the worker has used, ns. Called a few hundred times a second at the most."""

    def info(self, number: int, num_workers: int, base_seed: int, dataset: Any) -> WorkerInfo:
        """Who worker, or shard, `number` is."""

    def introduce(self, info: WorkerInfo | None) -> None:
        """This is what `get_worker_info()` returns here from now on."""

    def introduced(self) -> WorkerInfo | None:
        """What it returns now."""

    def seed_worker(self, base_seed: int, number: int) -> None:
        """Seed the random generators as torch seeds those of worker `number`."""

    def seeder(self, bases: Bases, epoch: int) -> Seeder:
        """Seeds the random generators for every batch of an epoch."""

    def marks(self) -> Bases | None:
        """Numbers for the states of the generators that a `worker_init_fn` may seed; None: it can seed none."""

    def streams(self) -> dict[str, Any]:
        """The states of the random generators, as plain values that `json.dumps` takes."""

    def restore(self, streams: dict[str, Any]) -> None:
        """Have the random generators go on from there."""


class WholeProcess:
    """Of a worker that has a process for itself."""

    kind = "process"

    def __init__(self) -> None:
        self.processor_ns = time.process_time_ns

    def info(self, number: int, num_workers: int, base_seed: int, dataset: Any) -> WorkerInfo:
        return WorkerInfo(number, num_workers, base_seed + number, dataset)

    def introduce(self, info: WorkerInfo | None) -> None:
        torch_worker._worker_info = info

    def introduced(self) -> WorkerInfo | None:
        return torch_worker._worker_info

    def seed_worker(self, base_seed: int, number: int) -> None:
        seeding.seed_worker(base_seed, number)

    def seeder(self, bases: Bases, epoch: int) -> Seeder:
        return BatchSeeder(bases, epoch)

    def marks(self) -> Bases | None:
        return seeding.marks()

    def streams(self) -> dict[str, Any]:
        return seeding.random_streams()

    def restore(self, streams: dict[str, Any]) -> None:
        seeding.restore_random_streams(streams)
