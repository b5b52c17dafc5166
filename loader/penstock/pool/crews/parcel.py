"""A recipe on its way to the process that makes workers."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor

from ...failures import UnpicklableError, describe_unpicklable
from ..tasks import Recipe
from .codec import storage_on


class Packed(Protocol):
    """A recipe that came from another machine, and is to be opened by the zygote."""

    def open(self) -> Recipe:
        """The recipe."""


class Parcel:
    """A recipe on its way to the zygote: as it is under fork, as a pickle otherwise.

    The pickle is opened only when the zygote can report what goes wrong. Tensors go into it by value, unless they are
    shared already: torch's own way would move each into a file in /dev/shm and hold a descriptor for it.
    """

    def __init__(self, recipe: Recipe | Packed | bytes) -> None:
        self._recipe = recipe

    def open(self) -> Recipe:
        if isinstance(self._recipe, bytes):
            recipe: Recipe = pickle.loads(self._recipe)
            return recipe
        return self._recipe if isinstance(self._recipe, Recipe) else self._recipe.open()

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
