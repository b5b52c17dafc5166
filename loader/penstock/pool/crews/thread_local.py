"""What a worker thread has for itself: its random generators, and who it is told to be by `get_worker_info()`.

Torch keeps the latter in one variable for the whole process. So `get_worker_info` gets other code, once, which looks
for an answer of the thread's own first: whoever has imported the function by name has that, too.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from hashlib import blake2b
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.worker import _RNG, WorkerInfo

from ... import seeding
from ...seeding import Bases, Seeder

_answers = threading.local()


def _of_this_thread() -> Any:
    return getattr(_penstock_answers, "info", _worker_info)  # type: ignore[name-defined]  # noqa: F821 # torch's own


def answer_by_thread() -> None:
    """From now on `get_worker_info()` knows threads apart."""
    torch_worker._penstock_answers = _answers  # type: ignore[attr-defined]
    torch_worker.get_worker_info.__code__ = _of_this_thread.__code__


def _forget() -> None:
    """The child of a fork is no worker thread, whoever forked it."""
    global _setting
    _setting = threading.Lock()
    _answers.__dict__.clear()


os.register_at_fork(after_in_child=_forget)

_setting = threading.Lock()


def use_one_processor() -> None:
    """From now on what this thread computes with torch takes one processor, as in a worker process.

    Torch takes the number that was set last for all threads that have not computed yet, training's perhaps. So it is
    set back, in a thread of its own: that changes nobody else's.
    """
    with _setting:
        of_others = torch.get_num_threads()
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(of_others,), daemon=True)
        restoring.start()
        restoring.join()


class OneThread:
    """Of a worker that shares its process: nothing here touches the global generators."""

    kind = "thread"

    def __init__(self) -> None:
        self.processor_ns = time.thread_time_ns
        numpy: Any = None
        if "numpy" in sys.modules:
            import numpy as np

            numpy = np.random.Generator(np.random.PCG64(0))
        self.rng = _RNG(random.Random(), torch.Generator(), numpy)

    def info(self, number: int, num_workers: int, base_seed: int, dataset: Any) -> WorkerInfo:
        return WorkerInfo(number, num_workers, base_seed + number, dataset, self.rng, "thread")

    def introduce(self, info: WorkerInfo | None) -> None:
        _answers.info = info

    def introduced(self) -> WorkerInfo | None:
        found: WorkerInfo | None = getattr(_answers, "info", None)
        return found

    def seed_worker(self, base_seed: int, number: int) -> None:
        """The seeds are torch's; of NumPy's generator, which torch does not say, it is our own."""
        self._seed(base_seed + number, base_seed + number, base_seed + number)

    def seeder(self, bases: Bases, epoch: int) -> Seeder:
        return _ThreadSeeder(self, bases, epoch)

    def marks(self) -> Bases | None:
        """What a `worker_init_fn` seeds are the global generators, which are not this thread's."""
        return None

    def streams(self) -> dict[str, Any]:
        rng = self.rng
        version, words, gauss = rng.random_generator.getstate()
        numpy: Any = rng.numpy_generator
        return {
            "torch": seeding.written(rng.torch_generator.get_state()),
            "random": [version, list(words), gauss],
            "numpy": None if numpy is None else numpy.bit_generator.state,
        }

    def restore(self, streams: dict[str, Any]) -> None:
        rng = self.rng
        rng.torch_generator.set_state(seeding.read(streams["torch"]))
        version, words, gauss = streams["random"]
        rng.random_generator.setstate((version, tuple(words), gauss))
        numpy: Any = rng.numpy_generator
        state = streams["numpy"]
        # A state that a process has saved is of another kind of generator.
        if (
            numpy is not None
            and state is not None
            and state["bit_generator"] == numpy.bit_generator.state["bit_generator"]
        ):
            numpy.bit_generator.state = state

    def _seed(self, for_torch: int, for_random: int, for_numpy: int) -> None:
        rng = self.rng
        rng.torch_generator.manual_seed(for_torch)
        rng.random_generator.seed(for_random)
        numpy: Any = rng.numpy_generator
        if numpy is not None:
            # Written into its state: seeding it costs as much as all the rest together.
            digest = int.from_bytes(blake2b(for_numpy.to_bytes(9, "little"), digest_size=32).digest(), "little")
            numpy.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": digest >> 128, "inc": digest & ((1 << 128) - 1) | 1},
                "has_uint32": 0,
                "uinteger": 0,
            }


class _ThreadSeeder:
    """Seeds a thread's own generators for every batch, from the same numbers as a process seeds its global ones."""

    def __init__(self, thread: OneThread, bases: Bases, epoch: int) -> None:
        self._thread, self._bases, self._epoch = thread, bases, epoch

    def seed(self, batch_index: int) -> None:
        self._thread._seed(*seeding.seeds(self._bases.torch, self._epoch, batch_index))
