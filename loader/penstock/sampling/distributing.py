"""DistributedSampler: each rank's own part of the indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils import data

from .origins import in_blocks
from .passes import IndexSampler, State


class DistributedSampler(IndexSampler, data.DistributedSampler[int]):
    """Every `num_replicas`-th index from `rank` on, of all indices shuffled alike on every rank.

    All ranks stand at the same position, so the state of one rank resumes every rank. A pass that another number of
    ranks has begun has in its origin how far each of theirs came (`before`), and at which position of ours it goes on
    (`base`): see `penstock.merging`.
    """

    def _signature(self) -> State:
        return {
            "sampler": "DistributedSampler",
            "length": self._source_length(),
            "num_replicas": self.num_replicas,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
        }

    def _blocks(self, origin: State, start: int) -> Iterator[Sequence[int]]:
        # Like torch's, and unlike the other samplers, it shuffles at iter(), not at the first next().
        epoch = origin.setdefault("epoch", self.epoch)
        length = self._source_length()
        self._check_size(length)
        order: torch.Tensor | None = None
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.seed + epoch)
            order = torch.randperm(length, generator=generator)
        total = self.total_size
        if origin.get("before"):
            order = _left(torch.arange(length) if order is None else order, origin["before"])
            length, start = len(order), start - origin["base"]
            rest = 0 if self.drop_last else -length % self.num_replicas
            total = (length + rest) // self.num_replicas * self.num_replicas
        return self._mine(order, length, start, total)

    def _mine(self, order: torch.Tensor | None, length: int, start: int, total: int) -> Iterator[Sequence[int]]:
        places = range(self.rank + start * self.num_replicas, total, self.num_replicas)
        inside = range(places.start, min(length, total), self.num_replicas)
        # Padding repeats the order from its beginning; a rank gets at most one index of it.
        padding = [place % length for place in places[len(inside) :]]
        if order is None:
            yield inside
            yield padding
        else:
            yield from in_blocks(order[inside.start : inside.stop : inside.step])
            yield order[padding].tolist()

    def _check_size(self, length: int) -> None:
        """Fail as torch does when the dataset no longer has the length that it had at construction."""
        padding = self.total_size - length
        if self.drop_last:
            found = min(length, self.total_size)
        else:
            found = self.total_size if padding >= 0 else length + max(length + padding, 0)
        if found != self.total_size:
            raise AssertionError(f"Number of indices ({found}) does not match total_size ({self.total_size})")

    def _restore(self, origin: State) -> None:
        self.epoch = origin["epoch"]

    def _nearest(self, position: int) -> int:
        return position

    def _source_length(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # torch's Dataset leaves __len__ to its subclasses


class FollowingSampler(DistributedSampler):
    """For one of torch's, whose epoch it follows: that may be set until the pass begins."""

    __qualname__ = "DistributedSampler"  # what it is called in states

    def __init__(self, sampler: data.DistributedSampler[int]) -> None:
        self._followed = sampler
        self.__dict__.update({name: value for name, value in vars(sampler).items() if name != "epoch"})

    @property
    def epoch(self) -> int:
        return self._followed.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._followed.epoch = epoch


def _left(order: torch.Tensor, before: Sequence[Sequence[int]]) -> torch.Tensor:
    """What earlier ranks have left of an order: for each number of ranks that there was, how far each of them came."""
    for positions in before:
        ranks = len(positions)
        left = torch.ones(len(order), dtype=torch.bool)
        for rank, position in enumerate(positions):
            left[rank : rank + position * ranks : ranks] = False
        order = order[left]
    return order
