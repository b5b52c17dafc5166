"""SPDL's pipeline with threads. A task is a whole batch, since a task per sample is slower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any

from torch.utils.data import default_collate

from tests.benchmarks.competitors.plan import Plan

pipeline = import_module("spdl.pipeline")


class Epochs:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def fetch(self, task: range) -> Any:
        return default_collate([self.plan.dataset[index] for index in task])

    def tasks(self) -> Iterator[range]:
        length, size = len(self.plan.dataset), self.plan.batch_size
        return (range(first, min(first + size, length)) for first in range(0, length, size))

    def __iter__(self) -> Iterator[Any]:
        workers = self.plan.workers
        builder = pipeline.PipelineBuilder().add_source(self.tasks())
        builder.pipe(self.fetch, concurrency=workers, output_order="input").add_sink(2 * workers)
        built = builder.build(num_threads=workers)
        with built.auto_stop():
            yield from built


def open(plan: Plan) -> Iterable[Any]:
    return Epochs(plan)


def version() -> str:
    return installed_version("spdl")
