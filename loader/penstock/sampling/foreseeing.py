"""What the next pass over a sampler will give, found out without drawing from anybody's generator.

Only for samplers whose code is known, ours and torch's own, and not their subclasses: nobody notices that a copy of one
is iterated over. A generator is read, and a clone draws. What is foreseen holds as long as nothing happens that was not
foreseen; whoever uses it compares it with what the pass then really gives.

Between two passes others may draw from the generator, too: a validation loader, say, takes its base seed from the
global one. What happened between the last two passes is expected to happen again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch

from ..seeding import draw_base_seed
from ..taking import by_signal_handler
from . import tracking
from .batching import BatchIterator, BatchSampler
from .distributing import DistributedSampler, FollowingSampler
from .origins import DrawingSampler
from .passes import IndexIterator, TrackedIterator
from .sequential import SequentialSampler
from .shuffling import RandomSampler, SubsetRandomSampler
from .standard import counterpart
from .weighting import WeightedRandomSampler

LONGEST = 1 << 23
"""Indices that may be shuffled to foresee a few: it takes their time and memory once more."""
MOST_DRAWS = 16
"""Seeds that others may have drawn between two passes."""

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DISTRIBUTED = (DistributedSampler, FollowingSampler)
_SEQUENCES = (list, tuple, range)


class Mark(NamedTuple):
    """What the next pass depends on, at one moment."""

    generator: bytes
    """State of the generator that the sampler draws from; empty: it draws from none."""
    epoch: int
    """What `set_epoch` said last; 0: that does not matter."""


class Foresight:
    """Foresees the passes over one sampler. All of it happens in the thread that iterates."""

    def __init__(self, sampler: object) -> None:
        self._sampler = sampler
        self._draws = 0
        """Seeds that others draw between two passes."""
        self._step = 1
        """By how much `set_epoch` goes on."""
        self._settled = b""
        """State of the global generator when the pass under way had drawn its indices; empty: it does not matter."""
        self._last: Mark | None = None
        """How things were when the next pass was to be foreseen."""
        self._explained = True
        """What happened between the last two passes may happen again."""

    @staticmethod
    def applies(sampler: object) -> bool:
        """Is the code of the sampler known, and of the one that it wraps?"""
        inner = _inner(sampler)
        if type(inner) in _DRAWING:
            return inner.generator is None or inner.generator.device.type == "cpu"
        return type(inner) is SequentialSampler or type(inner) in _DISTRIBUTED or type(inner) in _SEQUENCES

    def settle(self) -> None:
        """The pass under way has drawn its indices. From the global generator it draws nothing more."""
        inner = _inner(self._sampler)
        if isinstance(inner, DrawingSampler) and inner.generator is None:
            self._settled = self._mark().generator

    def batches(self, most: int) -> list[Any] | None:
        """The first of the next pass; None: they cannot be foreseen."""
        self._last = self._mark()
        # Whoever draws from the global one while the pass goes on will go on to do so.
        if not self._explained or (self._settled and self._last.generator != self._settled):
            return None
        try:
            found = list(islice(self._begin(counterpart(self._sampler)), most))
        except Exception as error:
            if by_signal_handler(error):
                raise
            return None  # the pass itself will say so
        return found if all(map(_is_plain, found)) else None

    def learn(self) -> None:
        """The next pass is about to begin: remember how that differs from what was there to be seen."""
        last, self._last, self._settled = self._last, None, b""
        if last is None:
            return
        now = self._mark()
        self._step = now.epoch - last.epoch
        draws = _draws_between(last.generator, now.generator)
        self._explained = draws is not None
        self._draws = draws or 0

    def _mark(self) -> Mark:
        inner = _inner(self._sampler)
        if isinstance(inner, DrawingSampler):
            generator = torch.default_generator if inner.generator is None else inner.generator
            return Mark(generator.get_state().numpy().tobytes(), 0)
        return Mark(b"", inner.epoch if isinstance(inner, DistributedSampler) else 0)

    def _begin(self, own: Any) -> Iterator[Any]:
        if type(own) is BatchSampler:
            return BatchIterator(own, self._begin_inner(own.sampler))
        return self._begin_inner(own)

    def _begin_inner(self, own: Any) -> TrackedIterator[Any]:
        if type(own) in _SEQUENCES:
            return tracking.track(own[:])
        if type(own) in _DISTRIBUTED:
            _check_length(len(own.dataset) if own.shuffle else 0)
            return IndexIterator(own, {"epoch": own.epoch + self._step}, 0)
        if type(own) is SequentialSampler:
            return IndexIterator(own, {}, 0)
        _check_length(len(own))
        clone = _clone(self._last.generator if self._last is not None else b"")
        for _ in range(self._draws):
            draw_base_seed(clone)
        double = copy.copy(own)
        if type(own) is RandomSampler and own.generator is None:
            return IndexIterator(double, {"seed": draw_base_seed(clone)}, 0)
        double.generator = clone
        return IndexIterator(double, {}, 0)


def _inner(sampler: object) -> Any:
    """The sampler that draws indices."""
    own = counterpart(sampler)
    return own.sampler if type(own) is BatchSampler else own


def _check_length(length: int) -> None:
    if length > LONGEST:
        raise ValueError(f"shuffling {length} indices costs too much to foresee a few of them")


def _is_plain(indices: object) -> bool:
    """Can it be compared without asking anybody's code?"""
    return type(indices) is int or (type(indices) is list and all(type(index) is int for index in indices))


def _clone(state: bytes) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def _draws_between(before: bytes, after: bytes) -> int | None:
    """How many seeds were drawn from a generator between these two states of it; None: it was something else."""
    if before == after:
        return 0
    clone = _clone(before)
    for draws in range(1, MOST_DRAWS + 1):
        draw_base_seed(clone)
        if clone.get_state().numpy().tobytes() == after:
            return draws
    return None
