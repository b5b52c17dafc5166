"""Hugging Face Accelerate: its shards, devices and bookkeeping, on our engine.

`Accelerator.prepare` takes dataset and samplers out of a loader and makes a loader of torch's from them, inside a thin
shell of its own; so does `skip_first_batches`. Engine, name, dashboard and live control would be gone, without a word.
So the shell's `__init__` is followed by ours: where the loader that is being prepared is one of ours, what Accelerate
has made from it becomes one too, with the same options.

A loader of ours has a state, which `save_state` and `load_state` of Accelerate's then hold. One that merely became
ours (`penstock run`) has what it had with torch's: a program that skips batches by itself must not be helped twice.
"""

from __future__ import annotations

import functools
import logging
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from .adoption.frames import variables
from .adoption.imports import when_imported

if TYPE_CHECKING:
    from .dataloader import DataLoader

log = logging.getLogger("penstock")

_adopted = False


def prepare(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """`accelerator.prepare(loader)`, which is enough by itself; kept for those who wrote this when it was not."""
    return accelerator.prepare_data_loader(loader)


def adopt_when_imported() -> None:
    """See to it that Accelerate keeps loaders of ours, if it is there or comes. Once per process."""
    global _adopted
    if not _adopted:
        _adopted = True
        when_imported("accelerate.data_loader", adopt)


def adopt(module: Any) -> None:
    shell = getattr(module, "DataLoaderAdapter", None)
    if shell is None:
        log.warning(
            "this version of Accelerate prepares loaders in a way that Penstock does not know: what it prepares is a "
            "loader of torch's, and not on the dashboard. `loader.watch(prepared)` shows it there."
        )
        return
    theirs = shell.__init__
    if getattr(theirs, "_penstock", False):
        return

    @functools.wraps(theirs)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        theirs(self, *arguments, **options)
        origin, skips = _origin(sys._getframe(1))
        if origin is not None:
            _keep(self, origin, skips)

    __init__._penstock = True  # type: ignore[attr-defined]
    shell.__init__ = __init__


def _origin(frame: FrameType | None) -> tuple[Any, bool]:
    """The loader of ours that is being prepared, if it is one; and is it to leave out its first batches?"""
    while frame is not None and frame.f_globals.get("__name__") == "accelerate.data_loader":
        if frame.f_code.co_name in ("prepare_data_loader", "skip_first_batches"):
            loader = variables(frame).get("dataloader")
            loader = getattr(loader, "base_dataloader", loader)
            ours = hasattr(vars(loader).get("_penstock"), "copy_for")
            return loader if ours else None, frame.f_code.co_name == "skip_first_batches"
        frame = frame.f_back
    return None, False


def _keep(shell: Any, origin: Any, skips: bool) -> None:
    from .dataloader import DataLoader

    made, before = shell.base_dataloader, origin._penstock
    if isinstance(origin, DataLoader):
        made.__class__ = DataLoader
    before.options.show_on(made)
    made.__dict__["_penstock"] = engine = before.copy_for(made)
    if skips:  # by its sampler: to go on from a state as well would skip twice, and the next epoch is a whole one
        engine.resume_state = before.resume_state = None
        shell.use_stateful_dataloader = False
    elif isinstance(origin, DataLoader):
        shell.use_stateful_dataloader = True  # what Accelerate calls a loader whose state is worth saving
    if shell.use_stateful_dataloader:
        shell.dl_state_dict = made.state_dict()
        shell._update_state_dict = functools.partial(_note_state, shell)
    else:
        shell._update_state_dict = _nothing


def _note_state(shell: Any) -> None:
    """Accelerate asks for the state at every batch. Where there is none to be had, it goes on without."""
    try:
        type(shell)._update_state_dict(shell)
    except ValueError:
        shell.use_stateful_dataloader = False
        shell._update_state_dict = _nothing


def _nothing() -> None:
    pass
