"""Hugging Face Accelerate: its shards, devices and bookkeeping, on our engine.

`Accelerator.prepare` takes dataset and samplers out of a loader and makes a loader of torch's from them: the engine,
the dashboard and live control would be gone. What it returns is a thin shell around that loader, though, and the shell
does not care what it holds. So we let it prepare, and then put a loader of ours in.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataloader import DataLoader

_PREPARED = ("dataset", "batch_size", "drop_last", "sampler", "batch_sampler", "generator")
"""What Accelerate may have replaced."""


def prepare(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """`accelerator.prepare(loader)`, still a loader of ours: with `resize`, `stats`, and the dashboard.

    `accelerator.save_state` and `load_state` then save and restore the place in the epoch as well, if that can be saved
    at all (see `DataLoader.state_dict`).
    """
    prepared = accelerator.prepare_data_loader(loader)
    inner = copy.copy(loader)
    # Past the protection of these attributes, which is for users.
    inner.__dict__.update({name: getattr(prepared.base_dataloader, name) for name in _PREPARED})
    prepared.base_dataloader = inner
    prepared.dl_state_dict = inner.state_dict()
    prepared.use_stateful_dataloader = True  # what Accelerate calls a loader whose state is worth saving
    prepared._update_state_dict = functools.partial(_note_state, prepared)
    return prepared


def _note_state(prepared: Any) -> None:
    """Accelerate asks for the state at every batch. Where there is none to be had, it goes on without."""
    try:
        type(prepared)._update_state_dict(prepared)
    except ValueError:
        prepared.use_stateful_dataloader = False
        prepared._update_state_dict = _nothing


def _nothing() -> None:
    pass
