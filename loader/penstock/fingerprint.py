"""What a dataset is like, in few enough numbers to take them at every epoch's edge; and what has changed since.

Persistent workers keep the dataset as it was when they were started. A training script that sets an attribute of its
own copy afterwards (a transform, a stage of a curriculum, a list of samples) changes nothing for them, and nothing says
so.

It is an alarm, so it errs on the quiet side. Containers are looked at in a few places and to a small depth. Left out is
what changes by being used (caches, random generators, files, locks), and what workers see change too (shared memory).
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterDataPipe, MapDataPipe

DEPTH = 4
"""How many steps from the dataset something may be to be looked at."""
LIMIT = 256
"""How many things are looked at at the most."""
PLACES = 8
"""In how many places a sequence is looked at."""
SHORT = 256
"""Texts up to so many characters are kept whole."""

Fingerprint = dict[str, Any]
"""From the path of each thing that was looked at, as one would write it, to what it was."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType)
_LEFT_OUT = (
    *(torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    *(np.memmap, memoryview, types.GeneratorType, Iterator, IterDataPipe, MapDataPipe),
)
_LEFT_OUT_MODULES = frozenset(
    {"multiprocessing", "threading", "_thread", "io", "_io", "mmap", "ctypes", "_ctypes", "queue", "weakref", "logging"}
    | {"socket", "asyncio", "concurrent", "selectors", "subprocess", "tempfile", "_weakref"}
)

_SHARING = frozenset({"multiprocessing", "ctypes", "_ctypes", "mmap"})
"""Modules whose objects are shared with, or can be reached from, other processes."""
_OURS = frozenset({"penstock.shared_list", "penstock.caching.store", "penstock.caching.counters"})
"""Modules whose objects share memory in which nothing ever changes that a sample is made from."""


def fingerprint(dataset: object) -> Fingerprint:
    """What there is to be seen of a dataset's attributes. Never raises: what cannot be looked at is left out."""
    found: Fingerprint = {}
    # Breadth first: when there is too much, what is near counts.
    waiting: list[tuple[str, object, int]] = [("", dataset, 0)]
    for path, value, depth in waiting:
        if len(found) >= LIMIT:
            break
        try:
            if depth and not _looked_at(value):
                continue
            found[path] = _summary(value)
            if depth < DEPTH:
                waiting += [(path + step, each, depth + 1) for step, each in _inside(value)]
        except Exception:
            continue  # somebody's own class: no reason to stop a training
    return found


def changed(before: Fingerprint, now: Fingerprint) -> str | None:
    """The path of something that is not what it was, the nearest to the dataset; None: nothing is known to be."""
    for path, summary in before.items():
        if path in now and now[path] != summary:
            return path.lstrip(".")
    return None


def shares(*things: object) -> bool:
    """Do they hold memory that training and workers have in common, so that workers see at once what training changes?

    It is looked for where changes are, a little deeper, and also in what functions are closed over and bound to.
    """
    seen: set[int] = set()
    waiting: list[tuple[object, int]] = [(each, 0) for each in things]
    for value, depth in waiting:
        if id(value) in seen or len(seen) >= LIMIT:
            continue
        seen.add(id(value))
        try:
            if _is_shared(value):
                return True
            if depth < DEPTH + 2 and type(value).__module__ not in _OURS:
                waiting += [(each, depth + 1) for _, each in _inside(value)]
                waiting += [(each, depth + 1) for each in _bound(value)]
        except Exception:
            continue  # somebody's own class: no reason to stop a training
    return False


def _is_shared(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.is_shared()
    if isinstance(value, np.memmap):
        return bool(value.flags.writeable)
    return not isinstance(value, type | types.ModuleType) and type(value).__module__.partition(".")[0] in _SHARING


def _bound(value: object) -> Iterator[object]:
    """What a function uses besides its arguments."""
    if isinstance(value, types.MethodType):
        yield value.__self__
    elif isinstance(value, types.FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or ())
        yield from value.__defaults__ or ()


def _looked_at(value: object) -> bool:
    if isinstance(value, _LEFT_OUT) or type(value).__module__.partition(".")[0] in _LEFT_OUT_MODULES:
        return False
    return not (isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.is_shared()))


def _summary(value: Any) -> Any:
    kind = type(value).__qualname__
    if isinstance(value, str | bytes) and len(value) > SHORT:
        return kind, len(value), value[: SHORT // 2], value[-SHORT // 2 :]
    if isinstance(value, float | complex):
        return kind, repr(value)  # of what is not a number, too, it is equal to itself
    if isinstance(value, _PLAIN):
        return kind, value
    if isinstance(value, _CODE):
        return kind, getattr(value, "__qualname__", ""), id(value)
    if isinstance(value, torch.Tensor):
        version = -1 if value.is_inference() else value._version
        return kind, tuple(value.shape), value.dtype, value.data_ptr(), version
    if isinstance(value, np.ndarray):
        return kind, value.shape, value.dtype.str, value.__array_interface__["data"][0], _some(value)
    if isinstance(value, list | tuple | dict | set | frozenset):
        return kind, len(value)
    return (kind,)


def _some(array: Any) -> bytes:
    if array.dtype.hasobject or array.size == 0:
        return b""
    at = np.linspace(0, array.size - 1, min(array.size, 64)).astype(np.int64)
    return bytes(array.flat[at].tobytes())


def _inside(value: Any) -> Iterator[tuple[str, object]]:
    """What a value holds, and how one would write the way to it."""
    if isinstance(value, _PLAIN + _CODE + (torch.Tensor, np.ndarray, set, frozenset)):
        return
    if isinstance(value, dict):
        for key, each in list(value.items())[:PLACES]:
            if isinstance(key, str | int):
                yield f"[{key!r}]", each
    elif isinstance(value, list | tuple):
        for at in sorted({len(value) * place // PLACES for place in range(PLACES)} | {len(value) - 1}):
            if 0 <= at < len(value):
                yield f"[{at}]", value[at]
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    else:
        for name, each in list(object.__getattribute__(value, "__dict__").items()):
            if not _is_a_cache(name, each):
                yield f".{name}", each


def _is_a_cache(name: str, value: object) -> bool:
    """Grows by being used, as far as its name and type say."""
    return "cache" in name.lower() or (name.startswith("_") and isinstance(value, dict | list | set))
