"""A worker's own side, of whatever kind it is: takes tasks, fetches, collates, and answers.

Between two batches it looks at its control words on the board, so that pausing, retiring and abandoning an epoch take
effect at once, whatever lies in its index queue. How tasks come and batches go is its kind's business.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from enum import Enum
from typing import Any

import torch

from ...failures import Failure
from ...fetching import IterableFetcher, MapFetcher
from ...making import ROOTS as BELOW
from ...making import BatchMaker
from ...profiling.stacks import codes_of
from ...ready import Allocate
from ...seeding import Bases
from ...tolerating import TolerantFetcher
from ..tasks import Recipe
from .board import Recorder, Word
from .crew import Order
from .messages import Adopt, Birth, Message, SharedSeed, Tasks
from .shards import Shards
from .surroundings import Surroundings

ADOPT = -2
"""In place of a batch index: not a task, but a shard that is to be read from now on."""


class Turn(Enum):
    """What a turn came to."""

    WORKED = 0
    IDLE = 1
    """There is nothing to do: wait for a message."""
    LEAVE = 2
    """It was told to leave."""


class Workbench:
    """Makes batches for one worker: what it is told it keeps to, what it makes it answers with.

    Its kind says how a batch goes to training (`_place`, `_answer`) and calls `initialize`, and then `turn`
    and `heed` in its own loop. All of it happens in the worker's one thread.
    """

    def __init__(
        self,
        recipe: Recipe,
        birth: Birth,
        row: memoryview,
        surroundings: Surroundings,
        allocate: Allocate | None = None,
    ) -> None:
        """`allocate` gives memory for batches, while they are fetched and collated."""
        self._recipe = recipe
        self._birth = birth
        self._row = row
        self._surroundings = surroundings
        self._recorder = Recorder(row, surroundings.processor_ns)
        self._maker = BatchMaker(
            recipe.auto_collation,
            recipe.collate_fn,
            recipe.record_samples,
            self._recorder,
            self._recorder.costs,
            allocate,
            recipe.tolerance,
        )
        self._tasks: deque[tuple[int, int, int, Any, int]] = deque()
        self._epoch = -1
        self._fetcher: MapFetcher | TolerantFetcher | None = None
        self._shards = Shards(recipe, birth, surroundings) if recipe.iterable else None
        self._bases: Bases | None = None
        self._shared_seeds: dict[int, int] = {}
        """Epoch → the seed of DataPipes, from the second epoch of a persistent worker on."""
        self._broken: Failure | None = None
        self._ended: set[int] = set()

    # -- a kind's own -----------------------------------------------------------------------------------------

    def _place(self, data: Any) -> Any:
        """The batch as it goes to training, in place of a payload; `nbytes` are those of its tensors and arrays."""
        raise NotImplementedError

    def _answer(self, fields: tuple[Any, ...]) -> None:
        """Send the fields of a `Batch`, soon."""
        raise NotImplementedError

    def _before_collating(self) -> None:
        """The samples are there."""

    def _not_placed(self) -> None:
        """There is no batch."""

    def _before_idling(self) -> None:
        """There is nothing to do: what is kept must be sent."""

    def _share_bases(self, bases: Bases) -> None:
        """The first worker's are those of all others."""

    def _find_bases(self) -> Bases | None:
        """What the first worker shared; None, after a moment, if it has not yet."""
        return None

    # -- what is the same for all -----------------------------------------------------------------------------

    def initialize(self) -> None:
        """Make ready for the first task; what `worker_init_fn` raises is answered to every task."""
        birth, recipe, surroundings = self._birth, self._recipe, self._surroundings
        surroundings.seed_worker(birth.base_seed, birth.worker)
        if recipe.shared_seed is not None:
            generator = torch.Generator().manual_seed(recipe.shared_seed)
            recipe.dataset = torch.utils.data.graph_settings.apply_random_seed(recipe.dataset, generator)
        surroundings.introduce(surroundings.info(birth.worker, birth.num_workers, birth.base_seed, recipe.dataset))
        if self._shards is not None:
            self._shards.keep_pristine()
        before = None if recipe.worker_init_fn is None or recipe.iterable else surroundings.marks()
        try:
            if recipe.worker_init_fn is not None:
                recipe.worker_init_fn(birth.worker)
        except Exception as error:
            self._broken = Failure.capture(error, self._where(), "worker_init_fn", birth.worker)
        now = None if before is None else surroundings.marks()
        if before is None or now is None:
            self._bases = Bases(birth.base_seed, birth.base_seed, birth.base_seed)
        elif birth.worker == 0:
            self._share_bases(Bases.after(birth.base_seed, before, now))

    def turn(self) -> Turn:
        """Do the next thing that there is to do."""
        row = self._row
        control = row[Word.CONTROL]
        if control == Order.LEAVE:
            self._recorder.retiring()
            return Turn.LEAVE
        if control == Order.HOLD or not self._tasks:
            self._before_idling()
            if control == Order.HOLD:
                self._recorder.paused()
            else:
                self._recorder.idle()
            return Turn.IDLE
        if self._bases is None:
            self._bases = self._find_bases()
            if self._bases is None:
                return Turn.WORKED
        epoch, batch, shard, indices, number = self._tasks.popleft()
        if epoch < row[Word.EPOCH] or number < row[Word.RECALLED]:
            if batch != ADOPT:
                self._skip()
            return Turn.WORKED
        if epoch != self._epoch:
            self._begin(epoch)
        if batch == ADOPT and self._shards is not None:
            self._ended.discard(shard)
            self._shards.adopt(shard, indices)
        else:
            self._work(epoch, batch, shard, indices)
        return Turn.WORKED

    def heed(self, message: Message) -> None:
        """Do what a message says; one that is not for here only wakes."""
        match message:
            case Tasks(tasks=tasks):
                self._tasks.extend(tasks)
            case Adopt(epoch, shard, state):
                # What was asked of this shard when it was last here is void.
                for task in [task for task in self._tasks if task[2] == shard]:
                    self._tasks.remove(task)
                    if task[1] != ADOPT:
                        self._skip()
                # In turn: a batch of this shard may be under way.
                self._tasks.append((epoch, ADOPT, shard, state, sys.maxsize))
            case SharedSeed(epoch, seed):
                self._shared_seeds = {epoch: seed}

    def _skip(self) -> None:
        """Answer a task that nobody wants done any more."""
        self._recorder.skip()
        now = self._recorder.moment()
        self._answer((-1, -1, -1, None, None, 0, now, now, now, now, -1, 0, None, None, None, -1, -1))

    def _begin(self, epoch: int) -> None:
        """Start an epoch: iterators over iterable-style datasets are made anew."""
        self._epoch = epoch
        self._ended.clear()
        shared_seed = self._shared_seeds.get(epoch)
        if shared_seed is not None:
            generator = torch.Generator().manual_seed(shared_seed)
            torch.utils.data.graph_settings.apply_random_seed(self._recipe.dataset, generator)
        if self._shards is not None:
            self._shards.clear()
        elif self._bases is not None:
            self._maker.seeder = self._surroundings.seeder(self._bases, epoch)

    def _map_fetcher(self) -> MapFetcher | TolerantFetcher:
        recipe = self._recipe
        if self._fetcher is None and recipe.tolerance is not None:
            self._fetcher = TolerantFetcher(
                recipe.dataset, recipe.auto_collation, recipe.tolerance, self._birth.base_seed
            )
            self._fetcher.mark = self._recorder.sample
        elif self._fetcher is None:
            recorded, memory = bool(recipe.record_samples), self._maker.memory
            self._fetcher = MapFetcher(recipe.dataset, recipe.auto_collation, recorded, memory)
        return self._fetcher

    def _where(self, batch: int = -1) -> str:
        place = f"in DataLoader worker {self._surroundings.kind} {self._birth.worker}"
        return place if batch < 0 else f"{place}, batch {batch}"

    def _work(self, epoch: int, batch: int, shard: int, indices: Any) -> None:
        recorder, maker, shards = self._recorder, self._maker, self._shards
        maker.start(batch)
        placed: Any = None
        samples: Any = None
        state: Any = None
        failure: Failure | None = self._broken
        if failure is None and shard not in self._ended:
            try:
                fetcher: MapFetcher | TolerantFetcher | IterableFetcher
                if shards is not None:
                    fetcher = shards.fetcher(shard)
                    indices = range(self._recipe.batch_size or 1)
                else:
                    fetcher = self._map_fetcher()
                if isinstance(fetcher, TolerantFetcher):
                    fetcher.epoch = epoch
                samples = maker.fetch(fetcher, indices)
                self._before_collating()
                placed = self._place(maker.collate(samples))
                if shards is not None:
                    state = shards.state(shard)
            except StopIteration as error:
                if shard < 0:
                    failure = Failure.capture(error, self._where(batch), "dataset", self._birth.worker)
            except Exception as error:
                stage, sample = "dataset" if samples is None else "collate_fn", maker.failed_sample()
                where = self._where(batch) + maker.failed_at()
                failure = Failure.capture(error, where, stage, self._birth.worker, sample)
            if failure is not None and shards is not None:
                with contextlib.suppress(Exception):  # the failure is what counts
                    state = shards.state(shard)
            if placed is None:
                self._not_placed()
                if shard >= 0 and failure is None:
                    self._ended.add(shard)
                    if self._recipe.persistent and shards is not None:
                        state = shards.final_state(shard)
        if placed is None and failure is None:
            sent = recorder.no_batch()
        else:
            sent = recorder.encode_done(maker.samples, 0 if placed is None else placed.nbytes)
        self._answer((
            epoch, batch, shard, placed, failure, maker.samples,
            recorder.started, recorder.fetched, recorder.collated, sent, *maker.slow, state, maker.bad or None,
            recorder.effort.processor, recorder.effort.queued,
        ))  # fmt: skip


ROOTS = BELOW | codes_of(Workbench.turn, Workbench._work)
"""Code below which a profile's stacks begin."""
