"""What a competitor is asked to load."""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.workloads import Samples


@dataclass(frozen=True)
class Plan:
    dataset: Samples
    batch_size: int
    workers: int
    start_method: str | None = None
    """None: the platform's default."""
    persistent: bool = True
    """Workers may outlive an epoch."""
    pin_memory: bool = False
    """Batches come pinned."""
