"""Loading through a pool of worker processes."""

from __future__ import annotations

import pickle
import sys
import time
import warnings
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import torch.multiprocessing

from ..agent.options import Remote
from ..budget import memory_limits
from ..checkpoint import CANNOT_SAVE, OUT_OF_ORDER, State, shards_for, unsaved
from ..failures import Failure, raise_error
from ..fetching import may_save, saves
from ..fingerprint import shares
from ..pool.conductor import HURRY
from ..pool.crews.crew import Crew
from ..pool.crews.processes import ProcessCrew
from ..pool.crews.threads import ThreadCrew
from ..pool.depth import TORCHS
from ..pool.epoch import Epoch
from ..pool.inbox import Inbox
from ..pool.observer import Cause
from ..pool.pool import Pool, PoolTimeoutError, Settings
from ..pool.tasks import Recipe
from ..pool.window import Finished, Task
from ..sampling import is_fixed, length_before_end
from ..sampling.foreseeing import Foresight
from ..taking import by_signal_handler, is_interruption
from ..telemetry.observer import PoolObserver
from .base import EpochIterator, Place
from .datapipes import apply_seed, sharding_init
from .edge import Edge

if TYPE_CHECKING:
    from ..dataloader import DataLoader

MOST_INDICES = 1 << 16
"""Sample indices drawn ahead at the most, unless two batches a worker need more."""

LOST = b"lost"
"""In place of the state of a shard whose worker died."""


class PooledIterator(EpochIterator):
    """Takes batches from a pool, and draws the tasks for it."""

    samples_late = True

    _make_task: Callable[[int, Any], Task] = Task

    def __init__(self, loader: DataLoader[Any]) -> None:
        if loader.prefetch_factor is not None and loader.prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        state = loader._penstock.resume_state
        super().__init__(loader, state)
        self._in_order = loader.in_order
        self._grace = 5.0
        self.pool = self._make_pool(loader)
        self._epoch: Epoch | None = None
        apply_seed(loader, self._dataset)  # once more, as torch does; the workers have the first one
        self._start(loader, state)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:  # noqa: ARG002
        """Start the next epoch on the same workers, or on new ones that have the dataset as it is now."""
        self.close_epoch("abandoned")
        self._drop_hand()
        engine = loader._penstock
        state, refresh = engine.resume_state, engine.take_refresh(self._dataset)
        if state is not None and state["base_seed"] is not None:
            self._base_seed = state["base_seed"]
        self._dataset, self._shared_seed = apply_seed(loader, self._dataset)
        # Workers know their seed and, for iterable-style datasets, the number of shards from birth on.
        resharded = self._iterable and {self._num_workers, len(self.place.shards)} != {loader.num_workers}
        if refresh or resharded or state is not None or self.pool.is_closing():
            self.pool.close()
            self.pool = self._make_pool(loader)
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._num_workers = loader.num_workers
        self._start(loader, state)

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, for those who look at torch's."""
        return self.pool.handles()

    def _shutdown_workers(self) -> None:
        """End the workers, as torch's iterators do for those who have no other way."""
        self.close_epoch("abandoned")
        self.close()

    def running(self) -> bool:
        """Is an epoch under way?"""
        return self._epoch is not None

    def close(self, grace: float = 5.0) -> None:
        """End the pool."""
        if self._epoch is not None:
            self._epoch.abandoned = True
        self.pool.close(grace)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        super().__del__()
        pool = self.__dict__.get("pool")
        if pool is not None and not finalizing() and not pool.is_closing():
            try:
                pool.close(self._grace)
            except KeyboardInterrupt:
                pool.pass_on_interrupt()

    def _make_pool(self, loader: DataLoader[Any]) -> Pool:
        options = self._engine.options
        depth = self._engine.depth
        depth.given = self._engine.given_prefetch_factor()
        depth.far = isinstance(options.workers, Remote)
        budget, ceiling = memory_limits(options.memory_budget)
        self._hold_bytes = max(budget // 4, 1)
        self._engine.note_dataset(self._dataset)
        self._edge = Edge(self._index_sampler) if self._may_foresee(loader) else None
        recipe = Recipe(
            dataset=self._dataset,
            iterable=self._iterable,
            auto_collation=loader._auto_collation,
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last,
            batch_size=loader.batch_size,
            worker_init_fn=sharding_init(loader.dataset, loader.worker_init_fn),
            movable=self._iterable and may_save(self._dataset),
            stateful=self._iterable and saves(self._dataset),
            persistent=bool(loader.persistent_workers),
            shared_seed=self._shared_seed,
            record_samples=options.record_samples,
            tolerance=self._engine.tolerance(),
        )
        batch_size = (loader.batch_size or 0) if loader._auto_collation else None
        stall = int(options.stack_after * 1e9)
        self.observer = PoolObserver(self.ledger, batch_size, options.record_samples, stall)
        return Pool(
            Settings(
                crews=self._crews(loader),
                recipe=recipe,
                workers=loader.num_workers,
                max_workers=max(options.max_workers, loader.num_workers),
                max_retries=options.max_retries,
                in_order=loader.in_order,
                prefetch_factor=depth.given,
                depth=depth,
                budget=budget,
                ceiling=ceiling,
                pin_mode=self.pin_mode,
                observer=self.observer,
                family=self.ledger,
                sample_timeout=None if self._iterable else options.sample_timeout,
            )
        )

    def _may_foresee(self, loader: DataLoader[Any]) -> bool:
        """Can batches of the next epoch be made before it begins, and nobody notice?"""
        options = self._engine.options
        return (
            options.prefetch_epochs
            and options.workers == "process"  # threads make batches from training's own dataset
            and loader.persistent_workers
            and not self._iterable
            and Foresight.applies(self._index_sampler)
            and not shares(self._dataset, loader.collate_fn)
        )

    def _crews(self, loader: DataLoader[Any]) -> list[Callable[[Inbox, int], Crew]]:
        """The kinds of workers that there are to be."""
        context, seed = loader.multiprocessing_context or torch.multiprocessing.get_context(), self._base_seed
        workers, retries = self._engine.options.workers, self._engine.options.max_retries
        if workers == "thread":
            return [lambda inbox, _: ThreadCrew(inbox, seed)]
        if not isinstance(workers, Remote):
            return [lambda inbox, most: ProcessCrew(inbox, context, seed, most)]
        from ..pool.crews.remote.making import make_crew

        local, wanted = workers.local, loader.num_workers - workers.local
        here: list[Callable[[Inbox, int], Crew]] = []
        if local:
            here = [lambda inbox, most: ProcessCrew(inbox, context, seed, most, local)]
        return [*here, lambda inbox, most: make_crew(workers, inbox, seed, most, retries, wanted)]

    def _start(self, loader: DataLoader[Any], state: State | None) -> None:
        self.open(state)
        self._exhausted = self._iterable
        self._sampler_error: BaseException | None = None
        self._drawn = self.place.batch
        """Tasks of the epoch that were drawn, those before a resume included."""
        self._indices: list[Any] = []
        """What was drawn last, until there is a task with it."""
        self._tasks: list[Task] = []
        """The last task, until the window has it."""
        self._times = self.ledger.times
        kept = None if state is None else shards_for(state, loader.num_workers)
        saved = None if kept is None else [None if each is None else pickle.dumps(each, 5) for each in kept]
        shards = [None] * loader.num_workers if saved is None else saved
        self.place = Place(self.place.batch, 0, tuple(shards), 0 if state is None else state.get("turn", 0))
        paused, left = self._engine.gate.status()
        if paused:
            self.pool.pause(left, None)
        else:
            self.pool.resume(None)
        workers = loader.num_workers
        epoch = self.pool.prepare(
            self.number, self._times, workers, self.place.batch, saved, self.place.turn, self._shared_seed
        )
        self._epoch_first = self.place.batch
        self._fixed = not self._iterable and is_fixed(self._index_sampler)
        self._length = length_before_end(self._index_sampler) if self._fixed else None
        """Tasks of an epoch whose order is fixed, before its end is found out, as far as that is known."""
        self._ahead, self._ahead_for = 0, workers
        edge = self._edge
        # One that begins paused has nothing that is ready.
        if edge is not None and edge.is_expected(self.number, wanted=state is None and not paused):
            try:
                self._epoch = epoch
                self._draw_ahead(workers)
            finally:
                self._epoch = edge.choose(epoch)
                self.pool.start(self._epoch, workers)
            return
        self.pool.start(epoch, workers)
        self._epoch = epoch
        if not self._iterable:
            self._draw_ahead(workers)

    def _depth(self, workers: int) -> int:
        """Tasks that may be drawn ahead. Deeper than torch draws only where nothing can change the sampler's order."""
        given = self.pool.settings.prefetch_factor
        if given is None and self._fixed:
            return self.pool.limit_tasks(workers)
        return (given or TORCHS) * workers

    def _draw_ahead(self, workers: int) -> None:
        """Draw the first tasks. How many does not depend on timing, so neither do generators."""
        start = time.monotonic_ns()
        most = self._most(self._depth(workers), 0)
        drawn = indices = 0
        while drawn < most and (drawn < TORCHS * workers or indices < MOST_INDICES):
            task = self._draw()
            if task is None:
                break
            drawn += 1
            indices += len(task.indices) if isinstance(task.indices, list | tuple) else 1
        self._ahead = drawn
        self._times.spend(start, time.monotonic_ns(), Cause.SAMPLER)
        self.pool.conductor.doorbell.ring()

    def _keep_ahead(self) -> None:
        """Draw a task for the batch that is taken, and more for a pool that has grown."""
        if self._edge is not None and self._length is not None and self._drawn >= self._length:
            self._edge.settle()
        if self._exhausted:
            self._look_ahead()
            return
        wanted, workers = self._ahead, self.pool.conductor.target
        if workers > self._ahead_for:
            more = TORCHS * workers if self._fixed else self._depth(workers)
            wanted = max(wanted, more)
        wanted = self._most(wanted, self.place.batch + 1)
        if self._fixed:
            while self._drawn < wanted and self._draw() is not None:
                pass
        elif self._drawn < wanted:
            start = time.monotonic_ns()
            try:
                while self._drawn < wanted and self._draw() is not None:
                    pass
            finally:
                self._times.spend(start, time.monotonic_ns(), Cause.SAMPLER)
        if self._exhausted:
            self._look_ahead()

    def _most(self, ahead: int, taken: int) -> int:
        """How many tasks may be drawn by now, given how many may be drawn ahead of those that are taken.

        That there are no more is found out when torch does, and not before: at the end of a pass a sampler may draw
        from its generator once more, and after a `break` it must not have done so.
        """
        if self._length is None:
            return taken + ahead
        torchs = (self.pool.settings.prefetch_factor or TORCHS) * self._ahead_for
        return min(taken + ahead, max(self._length, taken + torchs))

    def _look_ahead(self) -> None:
        """All tasks of the epoch are drawn: have the first ones of the next made, if they can be foreseen."""
        edge, workers = self._edge, self.pool.conductor.target
        depth = (self.pool.settings.prefetch_factor or TORCHS) * workers
        if edge is None or self._sampler_error is not None:
            return
        if not edge.is_due(self._drawn - self.place.batch - 1, depth):
            return
        start = time.monotonic_ns()
        tasks = edge.foresee(depth, self._make_task)
        if tasks:
            epoch = self.pool.prepare(self.number + 1, self._times, workers)
            epoch.window.waiting.extend(tasks)
            edge.keep(epoch, tasks)
            self.pool.foresee(epoch)
        self._times.spend(start, time.monotonic_ns(), Cause.SAMPLER)

    def _draw(self) -> Task | None:
        """Advance the sampler by one task. It is advanced in this thread only, as in torch. See `taking`."""
        epoch, sampler = self._epoch, self._sampler_iter
        if epoch is None or sampler is None:
            return None
        if self._tasks:
            self.pool.add(epoch, self._tasks)
        if self._exhausted:
            return None
        if not self._indices:
            try:
                self._indices.extend(islice(sampler, 1))
            except BaseException as error:
                interrupted = is_interruption(error)
                if not interrupted or not sampler.alive():
                    # What was drawn before it is yielded first. A sampler that an interruption ended says so then.
                    self._sampler_error = error
                    self._exhausted = True
                if interrupted:
                    raise
                return None
            if not self._indices:
                self._exhausted = True
                return None
        task = self._make_task(self._drawn, self._indices[0])
        self._tasks = [task]
        self._indices = []
        self._drawn += 1
        self.pool.add(epoch, self._tasks)
        return task

    def _next(self) -> Any:
        epoch = self._epoch
        if epoch is None:
            if self._sampler_error is not None:  # of an epoch whose end was interrupted
                raise_error(self._take_sampler_error())
            raise StopIteration
        if self.ledger.warnings:
            warnings.warn(self.ledger.warnings.popleft(), stacklevel=4)
        if not self.ended:
            self.ledger.enter(self.number)
        if not self._hand:
            self._take(epoch)
        finished: Finished = self._hand[0]
        epoch.taken = self.place.batch + 1 - self._epoch_first
        epoch.taken_bytes = self.place.nbytes + finished.nbytes
        if not self._iterable:
            self._keep_ahead()
        self._note(epoch, finished)
        failure = finished.failure
        if failure is not None:
            self._blame = failure if isinstance(failure, Failure) else "worker", self.place.batch, ""
            self._count()
            finished.discard()
            finished.batch = finished.error = None
            raise_error(failure)
        try:
            return finished.batch.payload.open(self._hold_bytes)  # type: ignore[union-attr]  # else there is a failure
        except Exception as error:
            if not by_signal_handler(error):  # else it is tried again
                self._count()
            raise

    def _take(self, epoch: Epoch) -> None:
        """Wait for the next batch, or end the epoch."""
        if self._exhausted and not self._iterable and not self._tasks and self.place.batch >= self._drawn:
            self._finish()
        try:
            if self.pool.take(epoch, self._timeout, self._hand):
                return
        except PoolTimeoutError:
            raise RuntimeError(self._explain_timeout(epoch)) from None
        except KeyboardInterrupt:
            self._grace = HURRY
            raise
        except Exception as error:
            if epoch.abandoned or epoch.error is not None or self.pool.is_closing():  # else a signal handler's
                self.close_epoch("failed", repr(error))
            raise
        self._finish()

    def _note(self, epoch: Epoch, finished: Finished) -> None:
        task, batch = finished.task, finished.batch
        samples = 0 if batch is None else batch.samples
        nbytes = 0 if batch is None or batch.payload is None else batch.payload.nbytes
        spans = self.ledger.spans
        if spans.stride and batch is not None and batch.batch % spans.stride == 0:
            spans.yielded((epoch.number, batch.shard, batch.batch), time.monotonic_ns())
        place = self.place
        shards, turn = place.shards, place.turn
        if task.shard >= 0:
            state = LOST if batch is None else batch.state
            shards = (*shards[: task.shard], state, *shards[task.shard + 1 :])
            turn = (task.shard + 1) % len(shards)
        self._due(task.indices, samples, nbytes, Place(place.batch + 1, epoch.taken_bytes, shards, turn))

    def _finish(self) -> NoReturn:
        """The epoch is over."""
        epoch, self._epoch = self._epoch, None
        try:
            if epoch is not None:
                self._final = epoch.window.positions()
            if epoch is not None and self._persistent_workers:
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
        self._blame = "sampler", self.place.batch, ""
        return error

    def _drop_hand(self) -> None:
        """Give a batch back that nobody asked for again after an interruption."""
        hand, self._hand = self._hand, []
        for finished in hand:
            finished.discard()

    def state_dict(self) -> State:
        if self._in_order or not self.place.batch:
            return super().state_dict()
        # The sampler's state is that of the beginning: the epoch, begun anew, has the same order.
        sampler = None if self._iterable or self._sampler_iter is None else self._sampler_iter.state_dict(0)
        return {"batch": self.place.batch, "sampler": sampler, **unsaved(OUT_OF_ORDER)}

    def _shards_state(self) -> State:
        if not self._iterable:
            return {}
        shards = self.place.shards
        if LOST in shards:
            return unsaved(f"shard {shards.index(LOST)} was lost with its worker")
        if self.place.batch and not any(shards):
            return unsaved(CANNOT_SAVE)
        return {"shards": _opened(shards), "turn": self.place.turn}

    def final_state(self) -> State:
        if not self._iterable or not self._persistent_workers or self._epoch is not None:
            return {}
        return {"shards": _opened(self._final)}

    def _explain_timeout(self, epoch: Epoch) -> str:
        batch = self.place.batch
        text = f"DataLoader timed out after {self._timeout} seconds"
        task = epoch.window.waited_for()
        if task is None:
            return f"{text}: no worker had taken up batch {batch} yet"
        text += f" waiting for batch {batch}"
        worker = self.pool.conductor.waits.holder(epoch, task)
        if worker is not None:
            text += f", which worker {worker.id} (pid {worker.pid}) has"
        stack = self.pool.stack(task)
        if stack:
            text += f". Its Python stack, innermost call first:\n{stack}"
        return text


def _opened(shards: tuple[bytes | None, ...]) -> list[Any]:
    return [None if state is None else pickle.loads(state) for state in shards]
