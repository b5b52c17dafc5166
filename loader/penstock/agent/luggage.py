"""A recipe on its way to another machine: a pickle, the contents of its arrays and tensors, and where its code is.

The contents lie outside the pickle. They are sent from where they are and become the dataset's memory where they
arrive, so that neither side ever has them twice; all workers there share them.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import sys
from collections.abc import Callable
from copyreg import dispatch_table
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..failures import UnpicklableError, describe_unpicklable
from ..pool.crews.codec import storage_on
from ..pool.tasks import Recipe
from ..shared_list import SharedList


class Origin(NamedTuple):
    """Where training finds its code."""

    paths: list[str]
    """As in `sys.path`."""
    folder: str
    """The working directory."""
    module: str
    """Name of the main module, if it was started by name;"""
    script: str
    """its file, if there is one."""

    @classmethod
    def here(cls) -> Origin:
        main = spawn.get_preparation_data("")
        paths = [path for path in main["sys_path"] if path]
        return cls(paths, str(Path.cwd()), main.get("init_main_from_name", ""), main.get("init_main_from_path", ""))


class Trunk:
    """Memory for the contents of one array. It is private, so that no worker changes another's."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.view = memoryview(mmap.mmap(-1, size, flags=flags) if size else b"")


class Luggage:
    """A recipe as it travels."""

    def __init__(self, pickled: bytes, contents: list[memoryview], origin: Origin) -> None:
        self.pickled = pickled
        self.contents = contents
        self.origin = origin

    @classmethod
    def packed(cls, recipe: Recipe) -> Luggage:
        """Raises UnpicklableError, which names what cannot be pickled."""
        contents: list[memoryview] = []
        try:
            pickled = _dumps(recipe, lambda buffer: contents.append(buffer.raw()))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            culprit = describe_unpicklable(recipe, "", _dumps).removeprefix(".")
            raise UnpicklableError(
                f"{culprit} cannot be pickled, and workers on other machines need that: {error}"
            ) from error
        return cls(pickled, contents, Origin.here())

    def open(self) -> Recipe:
        """The recipe; called in the process from which workers are forked."""
        host = socket.gethostname()
        for path in self.origin.paths:
            if path not in sys.path and Path(path).exists():
                sys.path.append(path)
        if Path(self.origin.folder).is_dir():
            os.chdir(self.origin.folder)
        if b"__main__" in self.pickled:
            self._import_main(host)
        try:
            recipe: Recipe = pickle.loads(self.pickled, buffers=self.contents)
        except (ImportError, AttributeError) as error:
            raise type(error)(
                f"{error}: the dataset, or something that it needs, is not to be found on {host}. Modules must be "
                "installed there, too, or lie under the same path"
            ) from error
        return recipe

    def _import_main(self, host: str) -> None:
        """As multiprocessing's `spawn` does."""
        module, script = self.origin.module, self.origin.script
        if module:
            spawn.prepare({"init_main_from_name": module})
        elif script and not Path(script).exists():
            raise FileNotFoundError(
                f"{script}, in which something that the dataset needs is defined, is not on {host}: "
                "copy it there, under the same path, or move what it defines to a module that is installed there"
            )
        elif script:
            spawn.prepare({"init_main_from_path": script})


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, out_of_band: Callable[[pickle.PickleBuffer], Any] | None) -> None:
        super().__init__(file, 5, buffer_callback=out_of_band)
        reductions: dict[type, Callable[[Any], Any]] = {
            torch.UntypedStorage: _reduce_storage,
            torch.TypedStorage: lambda storage: (_typed, (storage._untyped_storage, storage.dtype)),
            SharedList: lambda items: (SharedList, (list(items),)),
        }
        self.dispatch_table = {**dispatch_table, **reductions}


def _dumps(thing: object, out_of_band: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, out_of_band).dump(thing)
    return file.getvalue()


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    """By value, wherever it lies."""
    if storage.device.type != "cpu":
        return storage.__reduce_ex__(5)
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    contents: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return storage_on, (pickle.PickleBuffer(contents),)


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
