"""Batches a second with workers behind an agent, against the same workers here.

The agent is a process of this machine: what is compared is the way that batches take, not the machines.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from penstock import Agents, DataLoader
from penstock.agent.options import TOKEN

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import LEAST_SECONDS, time_epoch, warm_up
from tests.benchmarks.workloads import WORKLOADS

SECRET = "a secret of this benchmark"


def measure(variant: str, quick: bool, *, workload: str, workers: int, batches: int) -> Measures:
    spec = WORKLOADS[workload]
    dataset = spec.dataset(spec.batch_size * 4 * workers)
    with _opened(variant, dataset, spec.batch_size, workers) as loader:
        first_batch = warm_up(loader, spec, dataset)
        dataset.length = spec.batch_size * (max(batches // 4, 2 * workers) if quick else batches)
        gc.collect()
        timed, seconds = 0, 0.0
        while seconds < (LEAST_SECONDS / 4 if quick else LEAST_SECONDS):
            counted, elapsed = time_epoch(loader, spec, dataset)
            timed, seconds = timed + counted, seconds + elapsed
    return {"batches_per_s": timed / seconds, "first_batch_s": first_batch}


@contextlib.contextmanager
def _opened(variant: str, dataset: Any, batch_size: int, workers: int) -> Iterator[Any]:
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers, "persistent_workers": True}
    with contextlib.ExitStack() as undo:
        if variant == "agents":
            options["workers"] = Agents([undo.enter_context(agent())], token=SECRET)
        # Timed epochs begin with nothing made in advance, as everybody's do.
        loader: DataLoader[Any] = DataLoader(dataset, monitor=False, refresh="never", prefetch_epochs=False, **options)
        undo.callback(loader.close)
        yield loader


@contextlib.contextmanager
def agent() -> Iterator[str]:
    """An agent on this machine, and its address."""
    command = [sys.executable, "-m", "penstock_dashboard.cli", "agent", "--tethered", "--bind", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, TOKEN: SECRET}, text=True
    )
    try:
        yield process.stdout.readline().split()[-1] if process.stdout is not None else ""
    finally:
        process.communicate()
