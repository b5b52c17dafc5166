"""Where a pass's random numbers come from, written down so that they can be drawn again.

An origin is filled in at the pass's first draw, which like torch's happens at the first `next()`, not at
`iter()`. A generator that the user gave is put back on resuming, since later passes draw from it too. Torch's
global generator is not: it belongs to the training script, so a private copy of it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..seeding import draw_base_seed, read, written
from .passes import BLOCK, IndexSampler, State


class DrawingSampler(IndexSampler):
    """A sampler that may be given a generator to draw from."""

    generator: torch.Generator | None

    def _upcoming(self) -> State:
        return {} if self.generator is None else {"generator": written(self.generator.get_state())}

    def _restore(self, origin: State) -> None:
        if self.generator is not None and origin:
            self.generator.set_state(read(origin["generator"]))


def drawn_directly(generator: torch.Generator | None, origin: State) -> torch.Generator | None:
    """What a pass draws from when it uses the given, or else torch's global, generator itself."""
    if not origin:
        origin["generator"] = written((torch.default_generator if generator is None else generator).get_state())
        return generator
    source = torch.Generator() if generator is None else generator
    source.set_state(read(origin["generator"]))
    return source


def drawn_by_seed(generator: torch.Generator | None, origin: State) -> torch.Generator:
    """What a pass draws from when it takes no more than a seed from torch's global generator."""
    if generator is not None:
        drawn_directly(generator, origin)
        return generator
    if not origin:
        origin["seed"] = draw_base_seed(None)
    source = torch.Generator()
    source.manual_seed(origin["seed"])
    return source


def in_blocks(indices: torch.Tensor) -> Iterator[list[int]]:
    """The values of a one-dimensional tensor, of which few at a time are Python integers."""
    for start in range(0, len(indices), BLOCK):
        yield indices[start : start + BLOCK].tolist()
