"""torch's DataPipes: the seed they share over all ranks, and how they are sharded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import IterDataPipe, MapDataPipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..dataloader import DataLoader


def distributed_settings() -> tuple[int, int]:
    """(world size, rank)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def apply_seed(loader: DataLoader[Any], dataset: Any) -> tuple[Any, int | None]:
    """Draw the seed that all ranks share, for an iterable DataPipe; return (dataset, seed)."""
    if not isinstance(dataset, IterDataPipe):
        return dataset, None
    seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    if dist.is_available() and dist.is_initialized():
        dist.broadcast(seed, src=0, group=dist.new_group(backend="gloo"))
    shared = int(seed.item())
    generator = torch.Generator().manual_seed(shared)
    return torch.utils.data.graph_settings.apply_random_seed(dataset, generator), shared


def sharding_init(dataset: Any, worker_init_fn: Callable[[int], None] | None) -> Any:
    """The worker_init_fn for a dataset: DataPipes are sharded over ranks and workers first."""
    if not isinstance(dataset, IterDataPipe | MapDataPipe):
        return worker_init_fn
    return functools.partial(_shard, worker_init_fn, *distributed_settings())


def _shard(worker_init_fn: Callable[[int], None] | None, world_size: int, rank: int, worker_id: int) -> None:
    info = torch.utils.data.get_worker_info()
    if info is not None:
        total, number = info.num_workers * world_size, worker_id * world_size + rank
        torch.utils.data.graph_settings.apply_sharding(info.dataset, total, number)  # type: ignore[arg-type]
    if worker_init_fn is not None:
        worker_init_fn(worker_id)
