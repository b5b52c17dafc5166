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
from .pool.delivery import Decoded, dispose, facts, unpack, worker_of
from .pool.epoch import Epoch
from .pool.memory import HAS_MLOCK
from .pool.signals import emptied
from .pool.window import Finished
from .protocol import PinMode
from .telemetry.ledger import PinTally


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
            reason = "Without workers there is no shared memory" if HAS_MLOCK else "This system has no mlock either"
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


def pin(data: Any) -> Any:
    """Copy every tensor in `data` to pinned memory and keep the structure."""
    if hasattr(data, "pin_memory"):  # tensors, and batch types of the user's own
        return data.pin_memory()
    if isinstance(data, str | bytes):
        return data
    if isinstance(data, Mapping):
        return _pin_mapping(data)
    if isinstance(data, tuple):
        parts = [pin(part) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    if isinstance(data, Sequence):
        return _pin_sequence(data)
    return data


def _pin_mapping(data: Any) -> Any:
    pinned = {key: pin(value) for key, value in data.items()}
    try:
        if isinstance(data, MutableMapping):
            clone = copy.copy(data)
            clone.update(pinned)
            return clone
        return type(data)(pinned)
    except TypeError:
        return pinned


def _pin_sequence(data: Any) -> Any:
    pinned = [pin(value) for value in data]
    try:
        if isinstance(data, MutableSequence):
            clone = copy.copy(data)
            clone[:] = pinned
            return clone
        return type(data)(pinned)
    except TypeError:
        return pinned


class PinStage:
    """A thread that takes finished batches in order and appends them, pinned, to the epoch's data queue."""

    def __init__(self, mode: PinMode, tally: PinTally) -> None:
        self.mode: PinMode = mode
        self._tally = tally
        self._locked = False
        """The limits have allowed it at least once."""
        self._queue: queue.SimpleQueue[tuple[Epoch, Finished] | None] = queue.SimpleQueue()
        self._device = torch.accelerator.current_device_index() if mode == "accelerator" else -1
        self._over = threading.Event()
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
            torch.accelerator.set_device_index(self._device)
        while (item := self._queue.get()) is not None:
            epoch, finished = item
            del item
            if epoch.abandoned:
                dispose(finished)
            else:
                start = time.monotonic_ns()
                self._pin(finished)
                self._tally.add(finished.nbytes, time.monotonic_ns() - start)
                epoch.ready.append(finished)
                if epoch.abandoned:  # since it was looked at, and emptied
                    for left in emptied(epoch.ready):
                        dispose(left)
            epoch.pin_left += 1
            epoch.signal.set()
            del epoch, finished

    def _pin(self, finished: Finished) -> None:
        batch, worker = facts(finished), worker_of(finished)
        if batch is None or batch.encoded is None:
            return
        if self.mode == "accelerator":
            try:
                finished.result = Decoded(pin(unpack(finished, 0)), batch)
                finished.lease = None
            except Exception as error:
                failure = Failure.capture(error, f"in pin memory thread for device {self._device}")
                finished.result = Decoded(None, batch, failure)
        elif self.mode == "mlock" and worker is not None and batch.encoded.slot >= 0:
            if worker.slots.mapping(batch.encoded.slot).lock():
                self._locked = True
            self._tally.mode = "mlock" if self._locked else "none"
