"""Torch's DataLoader, replaced in place: the class stays the same object, and what it does is ours.

So it does not matter who imported it before, under which name, or made a subclass of it: `isinstance`, `type(…) is`,
pickles and copies see the class that they always saw. Torch's own methods are kept, for loaders that cannot be ours:

1. Before torch is imported there is nothing to replace: `install` waits for it. A program without torch pays nothing.
2. When torch's module has been loaded, `__init__` is exchanged for one that calls `_replace` first: our engine is only
   loaded when a loader is made.
3. `_replace` gives torch's class the methods of ours. A loader that was made before that is adopted with its next
   epoch. One that iterates in its own way (a subclass whose `_get_iterator` returns something of torch's) goes on to
   do so: it is left as torch's, which is said once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .imports import when_imported

log = logging.getLogger("penstock")

_lock = threading.RLock()
_installed = False
_init: Callable[..., None] | None = None
"""What torch's class has as `__init__` once it is replaced."""
_told: set[str] = set()

_OWN = frozenset({"__init__", "__iter__", "_get_iterator", "__len__", "_penstock"})
"""Methods that need a way back to torch's; all the others of our class are given to torch's as they are."""
_NOT_METHODS = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__parameters__"})


def install() -> None:
    """Replace torch's DataLoader, now or as soon as it is imported. Once per process."""
    global _installed
    with _lock:
        if not _installed:
            _installed = True
            when_imported("torch.utils.data.dataloader", _await_first_loader)
            when_imported("accelerate.data_loader", _adopt_accelerate)


def _adopt_accelerate(module: Any) -> None:
    from ..accelerate import adopt

    adopt(module)


def _await_first_loader(module: Any) -> None:
    """Torch is not whole yet at this moment, and perhaps no loader is ever made: what takes long comes later."""
    torchs = module.DataLoader
    before = torchs.__init__

    @functools.wraps(before)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        _replace(module, before, __init__)(self, *arguments, **options)

    torchs.__init__ = __init__
    for name in ("__iter__", "_get_iterator"):  # of loaders that were made before
        setattr(torchs, name, _first(module, before, __init__, name))


def _first(module: Any, before: Any, init: Any, name: str) -> Callable[[Any], Any]:
    torchs = getattr(module.DataLoader, name)

    @functools.wraps(torchs)
    def method(self: Any) -> Any:
        setattr(module.DataLoader, name, torchs)
        _replace(module, before, init)
        return getattr(module.DataLoader, name)(self)

    return method


def _replace(module: Any, before: Callable[..., None], waiting: Any) -> Callable[..., None]:
    """The `__init__` that torch's class has from now on."""
    global _init
    with _lock:
        if _init is None:
            try:
                _init = _replaced(module, before, waiting)
            except Exception as error:
                _tell(f"torch's DataLoader could not be replaced, and is used as it is: {error!r}")
                _init = before
        return _init


def _replaced(module: Any, torchs_init: Callable[..., None], waiting: Any) -> Callable[..., None]:
    with _without_collecting():
        from ..arguments import OPTIONS, given
        from ..dataloader import DataLoader
        from ..engine import Engine
        from .naming import name_for, name_of

    torchs = module.DataLoader
    for name in ("__iter__", "_get_iterator"):
        setattr(torchs, name, getattr(torchs, name).__dict__.get("__wrapped__", getattr(torchs, name)))
    torchs_iter, torchs_get_iterator, torchs_len = torchs.__iter__, torchs._get_iterator, torchs.__len__
    signature = _signature(DataLoader)
    defaults = {name: signature.parameters[name].default for name in OPTIONS}

    @functools.wraps(torchs_init)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(self, DataLoader):  # which comes here from its own, and does the rest itself
            torchs_init(self, *arguments, **options)
            return
        ours = {name: options.pop(name) for name in OPTIONS if name in options}
        torchs_init(self, *arguments, **options)
        ours["name"] = ours.get("name") or name_for(sys._getframe(1))
        DataLoader._engage(self, {**defaults, **ours}, given(options.get("prefetch_factor")))

    def is_ours(self: Any) -> bool:
        """Made by the `__init__` above, or before it and not under way."""
        engine = self.__dict__.get("_penstock")
        if engine is None and self.__dict__.get("_iterator") is None:
            ours = {**defaults, "name": name_of(self, sys._getframe(2))}
            DataLoader._engage(self, ours, self.prefetch_factor)
            return True
        return isinstance(engine, Engine)

    @functools.wraps(torchs_iter)
    def __iter__(self: Any) -> Any:
        if is_ours(self):
            return DataLoader.__iter__(self)
        if self.__dict__.get("_penstock") is None:
            _tell(f"a {type(self).__name__} was under way before Penstock was there: it goes on as torch's.")
        return torchs_iter(self)

    @functools.wraps(torchs_get_iterator)
    def _get_iterator(self: Any) -> Any:
        return DataLoader._get_iterator(self) if is_ours(self) else torchs_get_iterator(self)

    @functools.wraps(torchs_len)
    def __len__(self: Any) -> int:
        length: int = torchs_len(self)
        if isinstance(self.__dict__.get("_penstock"), Engine):
            DataLoader._penstock.fget(self).note_length(length)  # type: ignore[attr-defined]
        return length

    def _penstock(self: Any) -> Engine:
        if not is_ours(self):
            raise AttributeError(f"this {type(self).__name__} is not one of Penstock's: its epoch began before")
        return DataLoader._penstock.fget(self)  # type: ignore[attr-defined, no-any-return]

    __init__.__signature__ = waiting.__signature__ = signature  # type: ignore[attr-defined]
    torchs.__init__, torchs.__iter__, torchs._get_iterator = __init__, __iter__, _get_iterator
    torchs.__len__, torchs._penstock = __len__, property(_penstock)
    for name, method in vars(DataLoader).items():
        if name not in _OWN | _NOT_METHODS and (callable(method) or isinstance(method, property)):
            setattr(torchs, name, method)
    _notice_torchs_iterators(module)
    return __init__


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Modules stay: to look meanwhile for garbage among all that torch has loaded takes a quarter of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _signature(ours: type[Any]) -> inspect.Signature:
    """Libraries that make loaders again (Lightning) ask for it: that of our class, where a name is not needed."""
    signature = inspect.signature(ours.__init__)
    parameters = [each.replace(default=None) if each.name == "name" else each for each in signature.parameters.values()]
    return signature.replace(parameters=parameters)


def _notice_torchs_iterators(module: Any) -> None:
    """Whoever makes an iterator of torch's (ours do not call its `__init__`) is left as torch's, and named once."""
    iterator = module._BaseDataLoaderIter
    torchs = iterator.__init__

    @functools.wraps(torchs)
    def __init__(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        torchs(self, loader, *arguments, **options)
        kind, own = type(loader), type(self)
        _tell(
            f"{kind.__module__}.{kind.__qualname__} iterates in a way of its own ({own.__name__}): it is left as it "
            "is, and not on the dashboard. `loader.watch(…)` shows it there."
        )

    iterator.__init__ = __init__


def _tell(what: str) -> None:
    """Once, and not by every worker and rank."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    in_worker = worker is not None and worker._worker_info is not None
    if what not in _told and not in_worker and os.environ.get("LOCAL_RANK", "0") in ("", "0"):
        _told.add(what)
        log.warning(what)
