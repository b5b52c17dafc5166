"""Penstock's DataLoader with threads in place of processes."""

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
        persistent_workers=plan.persistent,
        workers="thread",
        monitor=False,
    )


def version() -> str:
    return __version__
