"""Loading through a pool of worker processes."""

from __future__ import annotations

import pickle
import time
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import torch.multiprocessing

from ..budget import memory_limits
from ..checkpoint import State
from ..failures import raise_error
from ..fetching import may_save, saves
from ..pool.conductor import HURRY
from ..pool.delivery import facts, unpack
from ..pool.epoch import Epoch
from ..pool.pool import Pool, PoolTimeoutError, Settings
from ..pool.tasks import Recipe
from ..pool.window import Finished, Task
from .base import EpochIterator
from .datapipes import apply_seed, sharding_init

if TYPE_CHECKING:
    from ..dataloader import DataLoader

MOST_INDICES = 1 << 16
"""Sample indices drawn ahead at the most, unless two batches a worker need more."""

LOST = b"lost"
"""In place of the state of a shard whose worker died."""


class PooledIterator(EpochIterator):
    samples_late = True

    def __init__(self, loader: DataLoader[Any], state: State | None) -> None:
        if loader.prefetch_factor is not None and loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        super().__init__(loader, state)
        self._timeout = loader.timeout
        self._in_order = loader.in_order
        self._persistent = loader.persistent_workers
        self._grace = 5.0
        self.pool = self._make_pool(loader)
        self._epoch: Epoch | None = None
        self._start(loader, state)

    def reset(self, loader: DataLoader[Any], state: State | None, *, refresh: bool) -> None:
        """Start the next epoch on the same workers, or on new ones that have the dataset as it is now."""
        self.close_epoch("abandoned")
        if state is not None and state["base_seed"] is not None:
            self.base_seed = state["base_seed"]
        # Workers know their seed and, for iterable-style datasets, the number of shards from birth on.
        resharded = self._iterable and self._num_workers != loader.num_workers
        if refresh or resharded or state is not None or self.pool.is_closing():
            self.pool.close()
            self.pool = self._make_pool(loader)
        self._promised = loader._IterableDataset_len_called
        self._num_workers = loader.num_workers
        self._start(loader, state)

    def running(self) -> bool:
        """Is an epoch under way?"""
        return self._epoch is not None

    def close(self, grace: float = 5.0) -> None:
        """End the pool."""
        if self._epoch is not None:
            self._epoch.abandoned = True
        self.pool.close(grace)

    def __del__(self) -> None:
        super().__del__()
        pool = getattr(self, "pool", None)
        if pool is not None and not pool.is_closing():
            try:
                pool.close(self._grace)
            except KeyboardInterrupt:
                pool.pass_on_interrupt()

    def _make_pool(self, loader: DataLoader[Any]) -> Pool:
        dataset, shared_seed = apply_seed(loader)
        budget, ceiling = memory_limits(loader.memory_budget)
        self._hold_bytes = max(budget // 4, 1)
        recipe = Recipe(
            dataset=dataset,
            iterable=self._iterable,
            auto_collation=loader._auto_collation,
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last,
            batch_size=loader.batch_size,
            worker_init_fn=sharding_init(loader.dataset, loader.worker_init_fn),
            movable=self._iterable and may_save(dataset),
            stateful=self._iterable and saves(dataset),
            shared_seed=shared_seed,
            record_samples=loader.record_samples,
        )
        return Pool(
            Settings(
                context=loader.multiprocessing_context or torch.multiprocessing.get_context(),
                recipe=recipe,
                base_seed=self.base_seed,
                workers=loader.num_workers,
                max_workers=max(loader.max_workers, loader.num_workers),
                max_retries=loader.max_retries,
                in_order=loader.in_order,
                prefetch_factor=loader.given_prefetch_factor,
                budget=budget,
                ceiling=ceiling,
                pin_mode=self.pin_mode,
                ledger=self.ledger,
                record_samples=loader.record_samples,
                stack_after=loader.stack_after,
            )
        )

    def _start(self, loader: DataLoader[Any], state: State | None) -> None:
        self.open(loader, state)
        self._exhausted = self._iterable
        self._sampler_error: Exception | None = None
        self._drawn = self.yielded
        self._times = self.ledger.times
        saved = None if state is None else state.get("shards")
        if saved is not None:
            saved = [None if state is None else pickle.dumps(state, 5) for state in saved]
        self._shards: list[bytes | None] = list(saved) if saved is not None else [None] * loader.num_workers
        self._turn = 0 if state is None else state.get("turn", 0)
        paused, left = loader.gate.status()
        if paused:
            self.pool.pause(left, None)
        else:
            self.pool.resume(None)
        self._epoch = self.pool.begin(self.number, self._times, loader.num_workers, self.yielded, saved, self._turn)
        self._epoch_first = self.yielded
        self._ahead, self._ahead_for = 0, loader.num_workers
        if not self._iterable:
            self._draw_ahead(loader.num_workers)

    def _draw_ahead(self, workers: int) -> None:
        """Draw the first tasks. How many does not depend on timing, so neither do generators."""
        most = self.pool.limit_tasks(workers)
        drawn = indices = 0
        while drawn < most and (drawn < 2 * workers or indices < MOST_INDICES):
            task = self._draw()
            if task is None:
                break
            drawn += 1
            indices += len(task.indices) if isinstance(task.indices, list | tuple) else 1
        self._ahead = drawn
        self.pool.conductor.doorbell.ring()

    def _catch_up(self, epoch: Epoch) -> None:
        """A pool that has grown wants more tasks ahead."""
        workers = self.pool.conductor.target
        if workers <= self._ahead_for:
            return
        given = self.pool.settings.prefetch_factor
        wanted = max(self._ahead, 2 * workers if given is None else given * workers)
        while self._drawn - self._epoch_first - epoch.taken < wanted and self._draw() is not None:
            pass

    def _draw(self) -> Task | None:
        """Advance the sampler by one task. It is advanced in this thread only, as in torch."""
        if self._exhausted or self._epoch is None or self._sampler_iter is None:
            return None
        try:
            indices = next(self._sampler_iter)
        except StopIteration:
            self._exhausted = True
            return None
        except Exception as error:
            # What was drawn before it is yielded first.
            self._sampler_error = error
            self._exhausted = True
            return None
        task = Task(self._drawn, indices)
        self._drawn += 1
        self.pool.add(self._epoch, task)
        return task

    def _next(self) -> Any:
        epoch = self._epoch
        if epoch is None:
            raise StopIteration
        if self.ledger.warning:
            warning, self.ledger.warning = self.ledger.warning, ""
            warnings.warn(warning, stacklevel=4)
        if not self.ended:
            self.ledger.enter(self.number)
        if self._exhausted and not self._iterable and epoch.taken + self._epoch_first >= self._drawn:
            self._finish()
        self._catch_up(epoch)
        try:
            finished = self.pool.take(epoch, self._timeout)
        except PoolTimeoutError:
            raise RuntimeError(self._explain_timeout(epoch)) from None
        except KeyboardInterrupt:
            self._grace = HURRY
            raise
        except Exception as error:
            self.close_epoch("failed", repr(error))
            raise
        if finished is None:
            self._finish()
        self._draw()
        self._note(epoch, finished)
        try:
            return unpack(finished, self._hold_bytes)
        except BaseException:
            # A batch that failed was yielded too: torch, asked for the next, goes on behind it.
            self.yielded += 1
            finished.result = None
            raise

    def _note(self, epoch: Epoch, finished: Finished) -> None:
        task, batch = finished.task, facts(finished)
        samples = 0 if batch is None else batch.samples
        nbytes = 0 if batch is None or batch.encoded is None else batch.encoded.nbytes
        self.ledger.add(epoch.number, task.batch, task.indices, self.base_seed, samples, nbytes)
        spans = self.ledger.spans
        if spans.stride and batch is not None and batch.batch % spans.stride == 0:
            spans.yielded((epoch.number, batch.shard, batch.batch), time.monotonic_ns())
        if task.shard >= 0:
            self._turn = (task.shard + 1) % len(self._shards)
            self._shards[task.shard] = LOST if batch is None else batch.state

    def _finish(self) -> NoReturn:
        """The epoch is over."""
        epoch, self._epoch = self._epoch, None
        try:
            if epoch is not None and self._persistent:
                self.pool.abandon(epoch)
            elif epoch is not None:
                epoch.abandoned = True
                self.pool.close(wait=False)
        finally:  # last, so that the time that this takes belongs to the epoch
            if self._sampler_error is None:
                self.close_epoch("ended")
            else:
                self.close_epoch("failed", repr(self._sampler_error))
        if self._sampler_error is not None:
            raise_error(self._take_sampler_error())
        raise StopIteration

    def _take_sampler_error(self) -> Any:
        error, self._sampler_error = self._sampler_error, None
        return error

    def state_dict(self) -> State:
        if not self._in_order:
            raise ValueError(
                "with in_order=False an epoch's state cannot be saved: which batches are left depends on timing"
            )
        return super().state_dict()

    def _shards_state(self) -> State:
        if not self._iterable:
            return {}
        if LOST in self._shards:
            raise ValueError(f"shard {self._shards.index(LOST)} was lost with its worker: its position is not known")
        if self.yielded and not any(self._shards):
            raise ValueError(
                "this iterable-style dataset cannot save its position: neither it nor its iterator has "
                "state_dict() and load_state_dict()"
            )
        shards = [None if state is None else pickle.loads(state) for state in self._shards]
        return {"shards": shards, "turn": self._turn}

    def _explain_timeout(self, epoch: Epoch) -> str:
        text = f"DataLoader timed out after {self._timeout} seconds"
        task = epoch.window.waited_for()
        if task is None:
            return f"{text}: no worker had taken up batch {self.yielded} yet"
        text += f" waiting for batch {self.yielded}"
        worker = self.pool.conductor.waits.holder(task)
        if worker is not None:
            text += f", which worker {worker.id} (pid {worker.pid}) has"
        stack = self.pool.stack(task)
        if stack:
            text += f". Its Python stack, innermost call first:\n{stack}"
        return text
