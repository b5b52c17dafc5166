"""What travels between conductor, zygote and workers."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor

from ..failures import UnpicklableError, describe_unpicklable
from .codec import Encoded, storage_on


@dataclass(slots=True)
class Recipe:
    """How batches are made: what the zygote gets once and every worker inherits."""

    dataset: Any
    iterable: bool
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    batch_size: int | None
    worker_init_fn: Callable[[int], None] | None
    record_samples: int = 0
    """How many of the slowest samples of an epoch are wanted by index."""
    movable: bool = False
    """The iterable-style dataset or its iterator may be able to save its position."""
    stateful: bool = False
    """The dataset says that it is."""
    persistent: bool = False
    """Workers, and what their datasets remember, live on after an epoch."""
    shared_seed: int | None = None
    """For DataPipes: the seed that all workers of all ranks share in their first epoch."""


class Parcel:
    """A recipe on its way to the zygote: as it is under fork, as a pickle otherwise.

    The pickle is opened only when the zygote can report what goes wrong. Tensors go into it by value, unless they are
    shared already: torch's own way would move each into a file in /dev/shm and hold a descriptor for it.
    """

    def __init__(self, recipe: Recipe | bytes) -> None:
        self._recipe = recipe

    def open(self) -> Recipe:
        if isinstance(self._recipe, bytes):
            recipe: Recipe = pickle.loads(self._recipe)
            return recipe
        return self._recipe

    def __reduce__(self) -> Any:
        return Parcel, (self._pickled(),)

    def _pickled(self) -> bytes:
        try:
            return _dumps(self._recipe)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            culprit = describe_unpicklable(self._recipe, "", _dumps).removeprefix(".")
            raise UnpicklableError(
                f"{culprit} cannot be pickled, and every start method but 'fork' needs that: {error}"
            ) from error


class _RecipePickler(ForkingPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        reductions: dict[type, Callable[[Any], Any]] = {
            torch.Tensor: _reduce_tensor,
            torch.UntypedStorage: _reduce_storage,
        }
        self.dispatch_table = {**self.dispatch_table, **reductions}


def _dumps(thing: object) -> bytes:
    file = io.BytesIO()
    _RecipePickler(file).dump(thing)
    return file.getvalue()


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.is_shared() or not tensor.is_cpu:
        return reduce_tensor(tensor)
    return tensor.__reduce_ex__(5)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.is_shared() or storage.device.type != "cpu":
        return reduce_storage(storage)
    contents = bytearray(storage.nbytes())
    if contents:
        torch.frombuffer(contents, dtype=torch.uint8).copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
    return storage_on, (contents,)


class Birth(NamedTuple):
    """What a new worker is told."""

    worker: int
    base_seed: int
    num_workers: int
    """As `get_worker_info().num_workers` will say; for iterable-style datasets the number of shards."""


class Batch(NamedTuple):
    """A finished batch, or the failure to make one, on its way from a worker."""

    epoch: int
    batch: int
    shard: int
    encoded: Encoded | None
    """None: the shard has ended, or there is a failure."""
    failure: Any
    samples: int
    start: int
    """Moments in ns of the monotonic clock."""
    fetched: int
    collated: int
    sent: int
    slowest: int
    """Position in the batch of the slowest sample; -1: not known."""
    slowest_ns: int
    slow: Any = None
    """(position, ns) of the slowest samples, if they are recorded."""
    state: Any = None
    """A shard's position after this batch, if its dataset can save it."""

    def is_end(self) -> bool:
        """Is it the end of a shard instead?"""
        return self.encoded is None and self.failure is None

    def size(self) -> int:
        """Bytes that it takes until training has it."""
        return 0 if self.encoded is None else self.encoded.nbytes + len(self.encoded.structure)
