"""torchdata.nodes, arranged as its documentation does for those who come from torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any

from torch.utils.data import SequentialSampler, default_collate

from tests.benchmarks.competitors.plan import Plan
from tests.benchmarks.workloads import Samples

nodes = import_module("torchdata.nodes")


class FetchAndCollate:
    def __init__(self, dataset: Samples) -> None:
        self.dataset = dataset

    def __call__(self, indices: Sequence[int]) -> Any:
        return default_collate([self.dataset[index] for index in indices])


def open(plan: Plan) -> Iterable[Any]:
    indices = nodes.SamplerWrapper(SequentialSampler(plan.dataset))
    tasks = nodes.Batcher(indices, batch_size=plan.batch_size, drop_last=False)
    batches = nodes.ParallelMapper(
        tasks,
        map_fn=FetchAndCollate(plan.dataset),
        num_workers=plan.workers,
        in_order=True,
        method="process",
        multiprocessing_context=plan.start_method,
    )
    loader: Iterable[Any] = nodes.Loader(nodes.Prefetcher(batches, prefetch_factor=2 * plan.workers))
    return loader


def version() -> str:
    return installed_version("torchdata")
