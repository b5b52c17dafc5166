"""Penstock's DataLoader, given what torch's is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import DataLoader, __version__

from tests.benchmarks.competitors.plan import Plan


def open(plan: Plan) -> Iterable[Any]:
    return DataLoader(
        plan.dataset,
        batch_size=plan.batch_size,
        num_workers=plan.workers,
        pin_memory=plan.pin_memory,
        multiprocessing_context=plan.start_method,
        persistent_workers=plan.persistent,
        monitor=False,
        prefetch_epochs=False,  # timed epochs begin with nothing made in advance, as everybody's do
    )


def version() -> str:
    return __version__
