"""`cached`: a dataset whose samples are made once.

What is kept is what the dataset gave, before `transform`. It is never thrown out for something else: in an epoch every
sample is wanted once, so whatever would come in its place is wanted just as late.
"""

from __future__ import annotations

import logging
import marshal
import os
import pickle
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from ..budget import available_memory, bytes_of
from ..protocol import CacheUse
from ..ready import ReadyBatch
from ..seeding import BatchSeeder
from .counters import Counters
from .handles import Handle
from .launches import launch_identity
from .places import in_file, in_memory
from .samples import Recorder, sample_of
from .store import Store, StoreError, identity_of

log = logging.getLogger("penstock")

_PLACES = 1 << 20
"""Places in the table for a dataset that does not tell its length."""

_recorders = threading.local()


def cached(
    dataset: Dataset[Any],
    transform: Callable[[Any], Any] | None = None,
    memory: int | str = "8 GB",
    path: str | os.PathLike[str] | None = None,
    key: object = None,
) -> Cached:
    """A map-style dataset whose samples are kept after they were made, and shared by all workers and ranks.

    What is kept is what `dataset` gives; `transform` is applied to it each time, with fresh random numbers. A sample
    that is read is a copy: it may be changed in place.

    Args:
        dataset: Samples are kept by index, which is an int, a string, bytes, or a tuple of those; others are made anew.
        transform: Called with every sample.
        memory: Bytes that all samples together may take: a number, or a text such as "8 GB". What does not fit is made
            anew each time. Without `path` it is no more than four fifths of the memory that is available.
        path: A file to keep them in, for later trainings. Without it they are in memory, and are gone with the last
            process that uses them.
        key: Says what the samples are (a name and a version, say), and changes when they do. It is compared by its
            `repr`. Without `path`, all processes of this user on this machine that give the same key share one cache;
            without a key, the ranks of one launch do.

    Raises:
        TypeError: The dataset is iterable-style.
        ValueError: `memory` is no size, or `path` is given without a key.
        OSError: The file cannot be made, or is none of ours.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        raise TypeError(f"cached(dataset): a map-style dataset is needed, not a {type(dataset).__name__}")
    budget = bytes_of(memory, "memory")
    if path is not None and key is None:
        raise ValueError(
            "cached(path=...): give a key, too, so that samples of another dataset are not taken for its own"
        )
    length = _length(dataset)
    places = 2 * length if length else _PLACES
    known = launch_identity(dataset) if key is None else f"key {key!r}"
    identity = identity_of(known or secrets.token_hex(16), length)
    if path is not None:
        store = in_file(Path(path), identity, places, budget)
    else:
        most = available_memory() * 4 // 5
        if budget > most:
            log.warning("the cache gets %d MB instead of %d MB: no more memory is available", most >> 20, budget >> 20)
        store = in_memory(identity, places, min(budget, most), shared=known is not None)
    return Cached(dataset, transform, store, identity, None if path is None else Path(path).absolute())


class Cached(Dataset[Any]):
    """What `cached` returns. Attributes that it does not have are the dataset's."""

    def __init__(
        self,
        dataset: Dataset[Any],
        transform: Callable[[Any], Any] | None,
        store: Store,
        identity: bytes,
        path: Path | None,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self._store = store
        self._identity = identity
        self._path = path
        self._counters = Counters()
        self._told = False

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __getitem__(self, index: Any) -> Any:
        sample = self._get(index)
        return sample if self.transform is None else self.transform(sample)

    @property
    def __getitems__(self) -> Callable[[list[Any]], Any] | None:
        """None unless the dataset has it."""
        return self._get_all if getattr(self.dataset, "__getitems__", None) else None

    def usage(self) -> CacheUse:
        """How the cache stands: what it holds, and what came of asking it."""
        samples, nbytes = self._store.usage()
        hits, misses, saved = self._counters.totals()
        return CacheUse(
            samples, nbytes, self._store.budget, hits, misses, max(saved, 0) // 1000, self._store.failed[:256]
        )

    def _get(self, index: Any) -> Any:
        name = _name(index)
        if name is None:
            return self.dataset[index]
        kept = self._read(name)
        if kept is not None:
            return kept.sample
        start = time.perf_counter_ns()
        with _Aside(name):
            sample = self.dataset[index]
        self._keep(name, sample, time.perf_counter_ns() - start)
        return sample

    def _get_all(self, indices: list[Any]) -> Any:
        names = [name for index in indices if (name := _name(index)) is not None]
        if len(names) < len(indices):
            return self._transformed(self.dataset.__getitems__(indices))  # type: ignore[attr-defined]
        samples: list[Any] = [self._read(name) for name in names]
        missing = [place for place, sample in enumerate(samples) if sample is None]
        if missing:
            start = time.perf_counter_ns()
            with _Aside(names[missing[0]]):
                made = self.dataset.__getitems__([indices[place] for place in missing])  # type: ignore[attr-defined]
            took = time.perf_counter_ns() - start
            if not isinstance(made, Sequence | ReadyBatch) or len(made) != len(missing):
                raise TypeError(
                    f"cached(dataset): __getitems__ returned a {type(made).__name__} for {len(missing)} indices, "
                    "and a list with a sample for each is needed"
                )
            for place, sample in zip(missing, made, strict=True):
                self._keep(names[place], sample, took // len(missing))
                samples[place] = _Kept(sample)
        return self._transformed([kept.sample for kept in samples])

    def _transformed(self, samples: Any) -> Any:
        return samples if self.transform is None else [self.transform(sample) for sample in samples]

    def _read(self, name: tuple[int, bytes]) -> _Kept | None:
        start = time.perf_counter_ns()
        found = self._store.get(*name)
        if found is None:
            return None
        sample = sample_of(found.record)
        self._counters.hit(1000 * found.took - (time.perf_counter_ns() - start))
        return _Kept(sample)

    def _keep(self, name: tuple[int, bytes], sample: Any, took: int) -> None:
        self._counters.missed()
        if self._store.failed:
            return
        try:
            recorder: Recorder | None = getattr(_recorders, "here", None)
            if recorder is None:
                recorder = _recorders.here = Recorder()
            parts = recorder.record(name[1], sample)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
            self._tell(f"samples of a {type(self.dataset).__name__} cannot be kept: {error}")
            return
        self._store.add(*name, parts, took // 1000)
        if self._store.failed:
            self._tell(f"the cache takes no more samples: {self._store.failed}. Those that it has are used.")

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            log.warning("%s", what)

    def __getstate__(self) -> dict[str, Any]:
        """With the addresses of what is shared: `spawn` and `forkserver` open it in their processes."""
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_store", "_counters")}
        shared = Handle.of(self._store.descriptor), self._store.budget, self._counters.handle()
        return {**kept, "_shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handle, budget, counters = state.pop("_shared")
        self.__dict__.update(state)
        self._counters = Counters(counters.open())
        self._store = self._open(handle.open(), budget)

    def _open(self, descriptor: int | None, budget: int) -> Store:
        length = _length(self.dataset)
        places = 2 * length if length else _PLACES
        if descriptor is not None:
            try:
                return Store(descriptor, self._identity, budget)
            except StoreError:
                os.close(descriptor)
        if self._path is not None:
            return in_file(self._path, self._identity, places, budget)
        return in_memory(self._identity, places, budget, shared=False)

    def __del__(self) -> None:
        store = self.__dict__.get("_store")
        if store is not None:
            store.close()


def find(dataset: Any) -> Cached | None:
    """The cache that a dataset is, or that it is a subset of."""
    while isinstance(dataset, Subset) and not isinstance(dataset, Cached):
        dataset = dataset.dataset
    return dataset if isinstance(dataset, Cached) else None


class _Kept(NamedTuple):
    """A sample, which may be None."""

    sample: Any


class _Aside:
    """Within, a sample is made: it draws from generators of its own, which depend on nothing but its name.

    Else the random numbers of `transform` would depend on whether a sample was kept, and what is kept on the order in
    which samples were asked for. Threads share the generators, so only the main one can do that.
    """

    def __init__(self, name: tuple[int, bytes]) -> None:
        self._seed = int.from_bytes(blake2b(name[1], digest_size=7).digest(), "little")
        self._streams: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._streams = torch.get_rng_state(), random.getstate(), np.random.get_state()
            BatchSeeder(self._seed, 0).seed(0)

    def __exit__(self, *_: object) -> None:
        if self._streams is not None:
            torch.default_generator.set_state(self._streams[0])
            random.setstate(self._streams[1])
            np.random.set_state(self._streams[2])


def _name(index: Any) -> tuple[int, bytes] | None:
    """A number and the bytes that an index is told by; None: samples are not kept by such an index."""
    if isinstance(index, np.integer):
        index = int(index)
    if type(index) is int and -(1 << 63) <= index < 1 << 63:
        return index % (1 << 64), b"%d" % index
    if type(index) in (str, bytes) or (type(index) is tuple and all(type(part) in (int, str, bytes) for part in index)):
        written = marshal.dumps(index, 2)
        return int.from_bytes(blake2b(written, digest_size=8).digest(), "little"), written
    return None


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0
