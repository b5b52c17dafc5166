"""RandomSampler and SubsetRandomSampler: every index once, in random order, or indices with replacement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

import torch
from torch.utils import data

from ..seeding import draw_base_seed
from .origins import DrawingSampler, drawn_by_seed, drawn_directly, in_blocks
from .passes import BLOCK, State
from .permutation import KeyedPermutation

_DRAWN_TOGETHER = 32
"""How many indices torch draws at a time with replacement."""


class RandomSampler(DrawingSampler, data.RandomSampler):
    """Torch's RandomSampler; with `constant_memory`, one that needs no list of all indices.

    With `constant_memory` the order is another than torch's. It takes the same small memory and starts at
    once for every length, and resumes anywhere without going through what comes before.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        *,
        constant_memory: bool = False,
    ) -> None:
        super().__init__(data_source, replacement, num_samples, generator)
        if not isinstance(constant_memory, bool):
            raise TypeError(f"constant_memory should be a boolean value, but got constant_memory={constant_memory}")
        if constant_memory and replacement:
            raise ValueError(
                "constant_memory=True is a permutation and cannot be combined with replacement=True, "
                "which needs no memory anyway"
            )
        self.constant_memory = constant_memory

    def _signature(self) -> State:
        return {
            "sampler": "RandomSampler",
            "length": len(self.data_source),
            "num_samples": self.num_samples,
            "replacement": self.replacement,
            "constant_memory": self.constant_memory,
            "own_generator": self.generator is not None,
        }

    def _blocks(self, origin: State, start: int) -> Iterator[Sequence[int]]:
        length = len(self.data_source)
        generator = drawn_by_seed(self.generator, origin)
        if self.constant_memory:
            yield from self._computed(length, draw_base_seed(generator), start)
        elif self.replacement:
            yield from self._replaced(length, generator)
        else:
            yield from self._permuted(length, generator)

    def _permuted(self, length: int, generator: torch.Generator) -> Iterator[Sequence[int]]:
        for _ in range(self.num_samples // length):
            yield from in_blocks(torch.randperm(length, generator=generator))
        # Torch draws this one even when nothing of it is needed, and so leaves the generator further on.
        yield from in_blocks(torch.randperm(length, generator=generator)[: self.num_samples % length])

    def _replaced(self, length: int, generator: torch.Generator) -> Iterator[Sequence[int]]:
        whole, rest = divmod(self.num_samples, _DRAWN_TOGETHER)
        for size in [*[_DRAWN_TOGETHER] * whole, rest]:
            yield torch.randint(high=length, size=(size,), dtype=torch.int64, generator=generator).tolist()

    def _computed(self, length: int, key: int, start: int) -> Iterator[Sequence[int]]:
        total = self.num_samples
        while start < total:
            cycle, offset = divmod(start, length)
            permutation = KeyedPermutation(length, (key, cycle))
            end = min(length, offset + total - start)
            for first in range(offset, end, BLOCK):
                yield permutation.block(first, min(first + BLOCK, end))
            start += end - offset

    def _nearest(self, position: int) -> int:
        # One before: the index that is then passed over makes the pass draw its key, as it had done by then.
        return max(position - 1, 0) if self.constant_memory else 0


class SubsetRandomSampler(DrawingSampler, data.SubsetRandomSampler):
    """The given indices, each once, in random order."""

    def _signature(self) -> State:
        return {
            "sampler": "SubsetRandomSampler",
            "length": len(self.indices),
            "own_generator": self.generator is not None,
        }

    def _blocks(self, origin: State, start: int) -> Iterator[Sequence[int]]:  # noqa: ARG002
        generator = drawn_directly(self.generator, origin)
        for places in in_blocks(torch.randperm(len(self.indices), generator=generator)):
            yield [self.indices[place] for place in places]
