"""How large a batch is that came through no slot: one that is only watched, or one that was loaded inline."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

MOST_PARTS = 1024
"""Parts of one batch that are looked at: what is behind them is not counted."""

_PLAIN = frozenset((int, float, str, bytes, bool, type(None)))
"""Of these nothing is to be known."""


def measure(batch: Any) -> tuple[int, int]:
    """Samples, as the length of the first tensor says (0: there is none), and bytes of all tensors and arrays."""
    try:
        if type(batch) is torch.Tensor:
            return batch.shape[0] if batch.ndim else 1, batch.nbytes
        samples, size, parts = 0, 0, [batch]
        for part in islice(parts, MOST_PARTS):  # they become more meanwhile
            kind = type(part)
            if kind in _PLAIN:
                continue
            if kind is torch.Tensor or isinstance(part, torch.Tensor):
                size += part.nbytes
                samples = samples or (part.shape[0] if part.ndim else 1)
            elif kind is list or kind is tuple or isinstance(part, list | tuple):
                parts += part[:MOST_PARTS]
            elif isinstance(part, dict):
                parts += part.values()
            elif isinstance(part, np.ndarray):
                size += part.nbytes
    except Exception:  # a sparse or nested tensor, or a type of the user's own: nothing is known of it
        return 0, 0
    return samples, size


def look_into(batch: Any) -> tuple[int | None, int | None]:
    """Samples and bytes of a batch of which nothing is known beforehand; None where they cannot be told.

    Samples: what all tensors and arrays have as their first dimension, if they agree. Bytes: of all tensors and arrays,
    if there is one, and nothing else that might hold any.
    """
    try:
        if type(batch) is torch.Tensor:
            return batch.shape[0] if batch.ndim else None, batch.nbytes
        return _look_into(batch)
    except Exception:  # a sparse or nested tensor, or a type of the user's own
        return None, None


def _look_into(batch: Any) -> tuple[int | None, int | None]:
    firsts: set[int | None] = set()
    size, opaque, parts = 0, False, deque([batch])
    for _ in range(MOST_PARTS):
        if not parts:
            break
        part = parts.popleft()
        if isinstance(part, torch.Tensor | np.ndarray):
            size += part.nbytes
            firsts.add(part.shape[0] if part.ndim else None)
        elif isinstance(part, Mapping):
            parts.extend(part.values())
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif is_dataclass(part):
            parts.extend(vars(part).values())
        elif isinstance(part, int | float):
            firsts.add(None)  # a number beside tensors: these may be of one sample, an image and its class, say
        elif not isinstance(part, str | bytes | None):
            opaque = True
    if not firsts - {None}:
        return None, size if size and not parts and not opaque else None
    return firsts.pop() if len(firsts) == 1 else None, None if parts or opaque else size
