"""Seeds: the base seed of an epoch, a worker's own seeds, and the seeds of each batch.

Torch seeds a worker once, so what its dataset draws depends on which batches that worker happens to get. Here
every batch is seeded anew from (base seed, epoch, batch index), so augmentation is the same for all of them.

What a `worker_init_fn` seeds takes the place of the base seed: a generator that it leaves in another state than it
found it in has that state as its base. The first worker's is taken for all, so that their number does not matter.
"""

from __future__ import annotations

import base64
import random
import sys
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple, Protocol

import torch

_MASK = (1 << 64) - 1
_BITS = 63
"""Of a seed: `torch.initial_seed()` may be part of a sample, and a tensor has no room for more."""
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


class Bases(NamedTuple):
    """What the seeds of batches are made from, for each generator: the base seed, or what `worker_init_fn` seeded."""

    torch: int
    random: int
    numpy: int

    @classmethod
    def after(cls, base_seed: int, before: Bases, now: Bases) -> Bases:
        """`before` and `now` are the marks of the generators before and after `worker_init_fn`."""
        return cls._make(base_seed if mark == former else mark for former, mark in zip(before, now, strict=True))


def marks() -> Bases:
    """A number for the state of each global generator, the same for the same state."""
    numpy = 0
    if "numpy" in sys.modules:
        import numpy as np

        state: Any = np.random.get_state()
        numpy = _mark(repr((state[0], state[1].tobytes(), *state[2:])).encode())
    return Bases(_mark(torch.get_rng_state().numpy().tobytes()), _mark(repr(random.getstate()).encode()), numpy)


def _mark(state: bytes) -> int:
    return int.from_bytes(blake2b(state, digest_size=8).digest(), "little") >> (64 - _BITS)


def batch_seed(base_seed: int, epoch: int, batch_index: int) -> int:
    """The seed of one batch: its torch seed, and the number that stands for all its seeds."""
    return seeds(base_seed, epoch, batch_index)[0]


def random_streams() -> dict[str, Any]:
    """The state of all global random generators, as plain values that `json.dumps` takes."""
    version, words, gauss = random.getstate()
    streams: dict[str, Any] = {"torch": written(torch.get_rng_state()), "random": [version, list(words), gauss]}
    streams["numpy"] = None
    if "numpy" in sys.modules:
        import numpy as np

        state: dict[str, Any] = dict(np.random.get_state(legacy=False))
        state["state"] = {key: word if isinstance(word, int) else word.tolist() for key, word in state["state"].items()}
        streams["numpy"] = state
    return streams


def restore_random_streams(streams: dict[str, Any]) -> None:
    torch.set_rng_state(read(streams["torch"]))
    version, words, gauss = streams["random"]
    random.setstate((version, tuple(words), gauss))
    if (streams["numpy"] or {}).get("bit_generator") == "MT19937":  # a thread has saved another kind's
        import numpy as np

        np.random.set_state(streams["numpy"])


def written(state: torch.Tensor) -> str:
    """The state of a torch generator as text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def read(text: str) -> torch.Tensor:
    """The state that `written` wrote."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


class Seeder(Protocol):
    """Seeds random generators for one batch after another."""

    def seed(self, batch_index: int) -> None:
        """Batch `batch_index` is made next."""


class BatchSeeder:
    """Seeds this process for one batch after another of an epoch."""

    def __init__(self, bases: Bases | int, epoch: int) -> None:
        """`bases` may be one number for all generators."""
        self.bases = Bases(bases, bases, bases) if isinstance(bases, int) else bases
        self.epoch = epoch

    def seed(self, batch_index: int) -> None:
        """Seed torch, `random` and, where it is loaded, NumPy for batch `batch_index`."""
        base = self.bases
        for_torch, for_random, for_numpy = seeds(base.torch, self.epoch, batch_index)
        if base.random != base.torch:
            for_random = seeds(base.random, self.epoch, batch_index)[1]
        if base.numpy != base.torch:
            for_numpy = seeds(base.numpy, self.epoch, batch_index)[2]
        # torch.manual_seed would also visit every accelerator backend, at a hundred times the cost.
        torch.default_generator.manual_seed(for_torch)
        # The two things that random.seed does for an integer, without its checks of the type.
        _seed_shared(for_random)
        _shared.gauss_next = None
        if "numpy" in sys.modules:
            import numpy as np

            # 32 bits, because NumPy's seeding from more than one word costs as much as all the rest together.
            np.random.seed(for_numpy)


def seeds(base_seed: int, epoch: int, batch_index: int) -> tuple[int, int, int]:
    """Of one batch: for torch, `random` and NumPy."""
    coordinates = _COORDINATES.pack(base_seed & _MASK, epoch & _MASK, batch_index & _MASK)
    for_torch, for_random, for_numpy = _SEEDS.unpack(blake2b(coordinates, digest_size=_SEEDS.size).digest())
    return for_torch >> (64 - _BITS), for_random >> (64 - _BITS), for_numpy
