"""Penstock: a data loader for PyTorch that can be watched and tuned while it trains."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Penstock needs Linux or macOS, because its workers are forked and share memory by descriptor: "
        "on Windows run it in WSL 2, or use torch.utils.data.DataLoader."
    )

if TYPE_CHECKING:
    from torch.utils.data import get_worker_info

    from .agent.options import Agents, RayWorkers
    from .caching.dataset import cached
    from .collating import default_collate, default_convert
    from .control import Outcome
    from .dataloader import DataLoader
    from .failures import WorkerLostError
    from .merging import merge_states
    from .protocol import Snapshot
    from .quarantine import TooManyErrorsError
    from .ready import ReadyBatch, batch_memory
    from .sampling import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from .shared_list import SharedList
    from .telemetry.watching import watch

__version__ = "0.1.0"

_HOMES = {
    "Agents": ".agent.options",
    "Autotune": ".tuning.options",
    "RayWorkers": ".agent.options",
    "DataLoader": ".dataloader",
    "SharedList": ".shared_list",
    "cached": ".caching.dataset",
    "default_collate": ".collating",
    "default_convert": ".collating",
    "BatchSampler": ".sampling",
    "DistributedSampler": ".sampling",
    "RandomSampler": ".sampling",
    "SequentialSampler": ".sampling",
    "SubsetRandomSampler": ".sampling",
    "WeightedRandomSampler": ".sampling",
    "Outcome": ".control",
    "ReadyBatch": ".ready",
    "batch_memory": ".ready",
    "Snapshot": ".protocol",
    "TooManyErrorsError": ".quarantine",
    "WorkerLostError": ".failures",
    "get_worker_info": "torch.utils.data",
    "merge_states": ".merging",
    "watch": ".telemetry.watching",
}

__all__ = [
    "Agents",
    "Autotune",
    "BatchSampler",
    "DataLoader",
    "DistributedSampler",
    "Outcome",
    "RandomSampler",
    "RayWorkers",
    "ReadyBatch",
    "SequentialSampler",
    "SharedList",
    "Snapshot",
    "SubsetRandomSampler",
    "TooManyErrorsError",
    "WeightedRandomSampler",
    "WorkerLostError",
    "batch_memory",
    "cached",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "merge_states",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import on first use: the dashboard needs `penstock.protocol` and must not load torch."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
