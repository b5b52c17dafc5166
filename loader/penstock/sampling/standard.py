"""Torch's own samplers: ours that give the same and can save their position, and whether an order is fixed.

A loader's public attributes stay of torch's types, which other libraries look at. What is iterated over is a
counterpart that is made for one pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils import data

from . import tracking
from .batching import BatchSampler
from .distributing import DistributedSampler, FollowingSampler
from .passes import State, TrackedIterator, length_of
from .sequential import SequentialSampler
from .shuffling import RandomSampler, SubsetRandomSampler
from .weighting import WeightedRandomSampler

_FIXED: tuple[type, ...] = (
    range,
    tuple,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
    FollowingSampler,
)
"""Their order is settled when the first index is drawn."""


def counterpart(sampler: Any) -> Any:
    """A sampler of ours that gives what this one of torch's gives; any other sampler as it is."""
    kind = type(sampler)
    if kind is data.BatchSampler:
        return BatchSampler(counterpart(sampler.sampler), sampler.batch_size, sampler.drop_last)
    if kind is data.SequentialSampler:
        return SequentialSampler(sampler.data_source)
    if kind is data.RandomSampler:
        return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator)
    if kind is data.SubsetRandomSampler:
        return SubsetRandomSampler(sampler.indices, sampler.generator)
    if kind is data.WeightedRandomSampler:
        return WeightedRandomSampler(sampler.weights, sampler.num_samples, sampler.replacement, sampler.generator)
    if kind is data.DistributedSampler:
        return FollowingSampler(sampler)
    return sampler


def track(sampler: Iterable[Any]) -> TrackedIterator[Any]:
    """`iter(sampler)`, able to tell its state."""
    return tracking.track(counterpart(sampler))


def resume(sampler: Iterable[Any], state: State) -> TrackedIterator[Any]:
    """The rest of the pass over `sampler` that gave `state`."""
    return tracking.resume(counterpart(sampler), state)


def check_state(sampler: Iterable[Any], state: State) -> None:
    """Refuse a state that is not of such a sampler."""
    tracking.check_state(counterpart(sampler), state)


def kind_of(sampler: object) -> str:
    """The kinds of a sampler and of those that it wraps, with the arguments that shape their order."""
    return tracking.kind_of(counterpart(sampler))


def covers(sampler: object, length: int) -> bool:
    """Is it known that it draws from all of a dataset of this length, and not from a part that somebody has chosen?"""
    own = counterpart(sampler)
    if type(own) is BatchSampler:
        return covers(own.sampler, length)
    if type(own) in (SequentialSampler, RandomSampler):
        return length_of(own.data_source) == length
    return type(own) in (DistributedSampler, FollowingSampler) and length_of(own.dataset) == length


def is_fixed(sampler: object) -> bool:
    """Is it known that nothing can change the order of a pass once it has begun? Then it may be drawn far ahead."""
    own = counterpart(sampler)
    if type(own) is BatchSampler:
        return is_fixed(own.sampler)
    if type(own) is RandomSampler:
        # It draws again in mid-pass then, from a generator that others may draw from too.
        shares = own.generator is not None and (own.replacement or own.num_samples != length_of(own.data_source))
        return own.constant_memory or not shares
    return type(own) in _FIXED


def length_before_end(sampler: object) -> int | None:
    """How many may be drawn of a pass whose order is fixed before its end is found out; None: that is not known.

    At its end torch's RandomSampler draws from its generator once more. A last batch that is not full finds the end.
    """
    length, own = length_of(sampler), counterpart(sampler)
    if type(own) is not BatchSampler or own.drop_last or not length:
        return length
    inner = own.sampler
    if type(inner) is RandomSampler and inner.generator is not None and inner.num_samples % own.batch_size:
        return length - 1
    return length
