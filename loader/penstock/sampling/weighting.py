"""WeightedRandomSampler: indices drawn with given probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils import data

from .origins import DrawingSampler, drawn_directly, in_blocks
from .passes import State


class WeightedRandomSampler(DrawingSampler, data.WeightedRandomSampler):
    """Indices of `weights`, each as likely as its weight is heavy."""

    def _signature(self) -> State:
        return {
            "sampler": "WeightedRandomSampler",
            "length": len(self.weights),
            "num_samples": self.num_samples,
            "replacement": self.replacement,
            "own_generator": self.generator is not None,
        }

    def _blocks(self, origin: State, start: int) -> Iterator[Sequence[int]]:  # noqa: ARG002
        generator = drawn_directly(self.generator, origin)
        drawn = torch.multinomial(self.weights, self.num_samples, self.replacement, generator=generator)
        yield from in_blocks(drawn)
