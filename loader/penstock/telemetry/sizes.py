"""How large a batch is that came through no slot: one of torch's loader, or one that was loaded inline."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

MOST_PARTS = 1024
"""Parts of one batch that are looked at: what is behind them is not counted."""


def measure(batch: Any) -> tuple[int, int]:
    """Samples, as the length of the first tensor says (0: there is none), and bytes of all tensors and arrays."""
    try:
        if type(batch) is torch.Tensor:
            return batch.shape[0] if batch.ndim else 1, batch.nbytes
        samples, size, parts = 0, 0, deque([batch])
        for _ in range(MOST_PARTS):
            if not parts:
                break
            part = parts.popleft()
            if isinstance(part, torch.Tensor):
                size += part.nbytes
                samples = samples or (part.shape[0] if part.ndim else 1)
            elif isinstance(part, np.ndarray):
                size += part.nbytes
            elif isinstance(part, dict):
                parts.extend(part.values())
            elif isinstance(part, list | tuple):
                parts.extend(part[:MOST_PARTS])
    except Exception:  # a sparse or nested tensor, or a type of the user's own: nothing is known of it
        return 0, 0
    return samples, size
