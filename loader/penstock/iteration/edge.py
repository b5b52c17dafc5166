"""The edge between two epochs of a loader with persistent workers: the next one is begun before this one is over.

When the last tasks of an epoch are out, workers would have nothing to do until training asks for the next epoch, and
training would then wait for a whole batch. So the first tasks of the next epoch are foreseen (`sampling.foreseeing`)
and given to the pool, which does them when there is nothing else to do. When the next epoch begins, its sampler is
iterated over as ever, and what it gives is compared with what was foreseen. Only if all of it is the same are the
batches used: so the stream, and what anybody draws from a generator, are what they would be without this.

What else a batch is made from is the same in both epochs by construction: the base seed and the dataset belong to the
workers, and with other workers there is another pool. Datasets that share memory with training are left alone, since a
change of it between two epochs could not be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..pool.epoch import Epoch
from ..pool.window import Task
from ..sampling.foreseeing import Foresight

MOST_MISSES = 2
"""Epochs in a row that may turn out otherwise before none is foreseen any more."""


class Edge:
    """Belongs to one iterator and one pool; all of it happens in the thread that iterates."""

    def __init__(self, sampler: object) -> None:
        self._foresight = Foresight(sampler)
        self._settled = self._looked = False
        self._epoch: Epoch | None = None
        self._tasks: list[Task] = []
        """The first ones of the epoch that is foreseen."""
        self._misses = 0

    def settle(self) -> None:
        """All tasks of the epoch are drawn."""
        if not self._settled:
            self._settled = True
            self._foresight.settle()

    def is_due(self, left: int, depth: int) -> bool:
        """Is it time to look ahead, with so many tasks of the epoch not taken yet?"""
        return left <= depth and not self._looked

    def foresee(self, depth: int, make_task: Callable[[int, Any], Task]) -> list[Task]:
        """The first tasks of the next epoch, as far as they can be known; once in an epoch."""
        self._looked = True
        batches = self._foresight.batches(depth) if self._misses < MOST_MISSES else None
        return [make_task(number, indices) for number, indices in enumerate(batches or ())]

    def keep(self, epoch: Epoch, tasks: list[Task]) -> None:
        """The pool does these tasks of this epoch."""
        self._epoch, self._tasks = epoch, tasks

    def is_expected(self, number: int, wanted: bool) -> bool:
        """The next epoch, of this number, is about to draw its first tasks: were some of that epoch foreseen?

        `wanted`: what was made of it may be used.
        """
        self._settled = self._looked = False
        self._foresight.learn()
        if self._epoch is not None and (self._epoch.number != number or not wanted):
            self._epoch, self._tasks = None, []
        return self._epoch is not None

    def choose(self, begun: Epoch) -> Epoch:
        """The first tasks of the next epoch are drawn: return the one to go on with, this one or the foreseen one."""
        foreseen, self._epoch = self._epoch, None
        tasks, self._tasks = self._tasks, []
        drawn = begun.window.waiting
        count = len(tasks)
        same = len(drawn) >= count and all(map(_are_same, tasks, drawn))
        self._misses = 0 if same else self._misses + 1
        if foreseen is None or not same:
            return begun
        foreseen.window.waiting.extend(list(drawn)[count:])
        return foreseen


def _are_same(one: Task, other: Task) -> bool:
    # `Bad` samples, which workers are told to leave out, compare by what is told of them.
    return one.batch == other.batch and one.indices == other.indices and one.without == other.without
