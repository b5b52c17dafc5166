"""Seeds: the base seed of an epoch, a worker's own seeds, and the seeds of each batch.

Torch seeds a worker once, so what its dataset draws depends on which batches that worker happens to get. Here
every batch is seeded anew from (base seed, epoch, batch index), so augmentation is the same for all of them.
"""

from __future__ import annotations

import random
import sys
from hashlib import blake2b
from struct import Struct
from typing import Any

import torch

_MASK = (1 << 64) - 1
_shared: Any = random._inst
_seed_shared = super(random.Random, _shared).seed
_COORDINATES = Struct("<QQQ")
_SEEDS = Struct("<QQI")


def draw_base_seed(generator: torch.Generator | None) -> int:
    """One number from `generator` (or torch's global one), drawn as torch's DataLoader draws it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def seed_worker(base_seed: int, worker_id: int) -> None:
    """Seed `random`, torch and NumPy as torch's DataLoader seeds worker number `worker_id`."""
    seed = base_seed + worker_id
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy as np

        words = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
        np.random.seed(np.random.SeedSequence(words).generate_state(4))


def batch_seed(base_seed: int, epoch: int, batch_index: int) -> int:
    """The 64-bit seed of one batch: its torch seed, and the number that stands for all its seeds."""
    return _seeds(base_seed, epoch, batch_index)[0]


def random_streams() -> dict[str, Any]:
    """The state of all global random generators, as plain values that `torch.load(weights_only=True)` takes."""
    streams: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate(), "numpy": None}
    if "numpy" in sys.modules:
        import numpy as np

        state: dict[str, Any] = dict(np.random.get_state(legacy=False))
        state["state"] = {key: word if isinstance(word, int) else word.tolist() for key, word in state["state"].items()}
        streams["numpy"] = state
    return streams


def restore_random_streams(streams: dict[str, Any]) -> None:
    torch.set_rng_state(streams["torch"])
    version, words, gauss = streams["random"]
    random.setstate((version, tuple(words), gauss))
    if streams["numpy"] is not None:
        import numpy as np

        np.random.set_state(streams["numpy"])


class BatchSeeder:
    """Seeds this process for one batch after another of an epoch."""

    def __init__(self, base_seed: int, epoch: int) -> None:
        self.base_seed = base_seed
        self.epoch = epoch

    def seed(self, batch_index: int) -> None:
        """Seed torch, `random` and, where it is loaded, NumPy for batch `batch_index`."""
        for_torch, for_random, for_numpy = _seeds(self.base_seed, self.epoch, batch_index)
        # torch.manual_seed would also visit every accelerator backend, at a hundred times the cost.
        torch.default_generator.manual_seed(for_torch)
        # The two things that random.seed does for an integer, without its checks of the type.
        _seed_shared(for_random)
        _shared.gauss_next = None
        if "numpy" in sys.modules:
            import numpy as np

            # 32 bits, because NumPy's seeding from more than one word costs as much as all the rest together.
            np.random.seed(for_numpy)


def _seeds(base_seed: int, epoch: int, batch_index: int) -> tuple[int, int, int]:
    coordinates = _COORDINATES.pack(base_seed & _MASK, epoch & _MASK, batch_index & _MASK)
    for_torch, for_random, for_numpy = _SEEDS.unpack(blake2b(coordinates, digest_size=_SEEDS.size).digest())
    return for_torch, for_random, for_numpy
