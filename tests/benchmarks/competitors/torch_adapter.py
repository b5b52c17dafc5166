"""torch's own DataLoader, with nothing but the arguments a user would give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.benchmarks.competitors.plan import Plan


def open(plan: Plan) -> Iterable[Any]:
    return DataLoader(
        plan.dataset,
        batch_size=plan.batch_size,
        num_workers=plan.workers,
        pin_memory=plan.pin_memory,
        multiprocessing_context=plan.start_method,
        persistent_workers=plan.persistent,
    )


def version() -> str:
    return str(torch.__version__)
