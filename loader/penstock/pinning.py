"""The pin stage: makes finished batches ready for fast copies to an accelerator.

With an accelerator it copies every tensor with `tensor.pin_memory()`, as torch does. Without one it page-locks the
slots in place with mlock, as far as the limits allow, so that they are never swapped out. It runs in a thread of its
own between the reorder buffer and the data queue.
"""

from __future__ import annotations

import copy
import queue
import resource
import threading
import time
import warnings
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

from .failures import Failure
from .pool.crews.payload import Opened, Payload
from .pool.epoch import Epoch
from .pool.memory import HAS_MLOCK
from .pool.observer import PinTally
from .pool.signals import Latch, emptied
from .pool.window import Finished
from .protocol import PinMode
from .sizes import MOST_PARTS


def choose_mode(pin_memory: bool, pin_memory_device: str, *, slots: bool = True) -> PinMode:
    """Decide how to pin, and warn where that is not what was asked for. `slots`: batches come through slots."""
    if not pin_memory:
        return "off"
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=4,
        )
    if not torch.accelerator.is_available():
        if not HAS_MLOCK or not slots:
            reason = (
                "Without worker processes there is no shared memory" if HAS_MLOCK else "This system has no mlock either"
            )
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                f"then device pinned memory won't be used. {reason}: batches are not pinned.",
                stacklevel=4,
            )
            return "none"
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allowance = "all" if limit == resource.RLIM_INFINITY else f"up to {limit >> 10} KiB"
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used. "
            f"Batches in shared memory are page-locked with mlock instead (RLIMIT_MEMLOCK allows {allowance}).",
            stacklevel=4,
        )
        return "mlock"
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used.",
            stacklevel=4,
        )
        return "none"
    return "accelerator"


def pin(data: Any) -> tuple[Any, int]:
    """Copy every tensor in `data` to pinned memory and keep the structure; also the bytes of all that was pinned."""
    pinning = _Pinning()
    return pinning.pin(data), pinning.nbytes


class _Pinning:
    """One batch on its way to pinned memory. Every container is treated as torch's `pin_memory` treats it."""

    def __init__(self) -> None:
        self.nbytes = 0

    def pin(self, data: Any) -> Any:
        if hasattr(data, "pin_memory"):  # tensors, and batch types of the user's own
            pinned = data.pin_memory()
            plain = type(data) is torch.Tensor and data.layout is torch.strided
            self.nbytes += data.nbytes if plain else _pinned_bytes(pinned)
            return pinned
        if isinstance(data, str | bytes):
            return data
        if isinstance(data, Mapping):
            return self._pin_mapping(data)
        if isinstance(data, tuple):
            parts = [self.pin(part) for part in data]
            return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
        if isinstance(data, Sequence):
            return self._pin_sequence(data)
        return data

    def _pin_mapping(self, data: Any) -> Any:
        pinned = {key: self.pin(value) for key, value in data.items()}
        try:
            if isinstance(data, MutableMapping):
                clone = copy.copy(data)
                clone.update(pinned)
                return clone
            return type(data)(pinned)
        except TypeError:
            return pinned

    def _pin_sequence(self, data: Any) -> Any:
        pinned = [self.pin(value) for value in data]
        try:
            if isinstance(data, MutableSequence):
                clone = copy.copy(data)
                for place, value in enumerate(pinned):  # not all take a slice
                    clone[place] = value
                return clone
            return type(data)(pinned)
        except TypeError:
            return pinned


def _pinned_bytes(pinned: Any) -> int:
    """Bytes of the pinned tensors in what `pin_memory()` of a user's type gave, as far as they can be found: in lists,
    tuples, dicts, and attributes of types that have such a method."""
    size, parts, seen = 0, [pinned], set[int]()
    try:
        while parts and len(seen) < MOST_PARTS:
            part = parts.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, torch.Tensor):
                size += _tensor_bytes(part) if part.is_pinned() else 0
            elif isinstance(part, dict):
                parts.extend(part.values())
            elif isinstance(part, list | tuple):
                parts.extend(part[:MOST_PARTS])
            elif hasattr(part, "pin_memory"):
                parts.extend(vars(part).values())
    except Exception:  # it is pinned: that it cannot be measured is no reason to fail
        return size
    return size


def _tensor_bytes(tensor: torch.Tensor) -> int:
    """Of a sparse tensor: its values and their places."""
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices().nbytes + tensor.col_indices().nbytes + tensor.values().nbytes
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices().nbytes + tensor.row_indices().nbytes + tensor.values().nbytes
    return tensor.nbytes


class PinStage:
    """A thread that takes finished batches in order and appends them, pinned, to the epoch's data queue."""

    def __init__(self, mode: PinMode, tally: PinTally) -> None:
        self.mode: PinMode = mode
        self._tally = tally
        self._locked = False
        """The limits have allowed it at least once."""
        self._queue: queue.SimpleQueue[tuple[Epoch, Finished] | None] = queue.SimpleQueue()
        self._device = torch.accelerator.current_device_index() if mode == "accelerator" else -1
        self._where = f"in pin memory thread for device {self._device}"
        self._unusable: Failure | None = None
        """Why nothing can be pinned for that device."""
        self._over = Latch()
        """The thread is at its end; see point 6 of the conductor's argument."""
        self.thread = threading.Thread(target=self._run, name="loader-pin", daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self._queue.put(None)  # should it run after all
            raise

    def put(self, epoch: Epoch, ready: list[Finished]) -> None:
        for finished in ready:
            self._queue.put((epoch, finished))

    def close(self) -> None:
        self._queue.put(None)
        if self.thread is not threading.current_thread():
            self._over.wait()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._over.set()

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: the copy should not take all cores
        if self.mode == "accelerator":
            self._choose_device()
        while (item := self._queue.get()) is not None:
            epoch, finished = item
            del item
            if epoch.abandoned:
                finished.discard()
            else:
                start = time.monotonic_ns()
                nbytes = self._pin(finished)
                if nbytes is not None:
                    self._tally.add(nbytes, time.monotonic_ns() - start)
                epoch.ready.append(finished)
                if epoch.abandoned:  # since it was looked at, and emptied
                    for left in emptied(epoch.ready):
                        left.discard()
            epoch.pin_left += 1
            epoch.signal.set()
            del epoch, finished

    def _choose_device(self) -> None:
        """Pin for the device that training uses. If there is no using it, every batch says so: training waits."""
        try:
            torch.accelerator.set_device_index(self._device)
        except Exception as error:
            self._unusable = Failure.capture(error, self._where)

    def _pin(self, finished: Finished) -> int | None:
        """Pin a batch. Returns the bytes that are pinned now; None: there is no batch, because something failed."""
        payload = None if finished.batch is None else finished.batch.payload
        if payload is None:
            return None
        if self.mode == "accelerator":
            return self._copy(finished, payload)
        locked = payload.lock()
        self._locked = self._locked or locked
        self._tally.mode = "mlock" if self._locked else "none"
        return payload.nbytes if locked else 0

    def _copy(self, finished: Finished, payload: Payload) -> int | None:
        """Put the pinned copy in place of the batch, or what went wrong."""
        value, nbytes, failure = None, None, self._unusable
        if failure is not None:
            payload.discard()
        else:
            try:
                value, nbytes = pin(payload.open(0))
            except BaseException as error:  # whatever it is, it must not end this thread: training waits for it
                failure = Failure.capture(error, self._where)
        if finished.batch is not None:
            finished.batch = finished.batch._replace(payload=Opened(value, payload.nbytes), failure=failure)
        return nbytes
