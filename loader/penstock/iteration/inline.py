"""Loading in the training thread itself (`num_workers=0`)."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from ..checkpoint import CANNOT_SAVE, State, shards_for, unsaved
from ..costs import UNTIMED
from ..fetching import IterableFetcher, MapFetcher
from ..making import ROOTS as BELOW
from ..making import BatchMaker, Moments
from ..pinning import pin
from ..pool.observer import Cause
from ..profiling.stacks import codes_of
from ..protocol import CommandEvent
from ..sampling import is_fixed
from ..sizes import measure
from ..taking import by_signal_handler
from ..telemetry.costs import InlineCosts, Passage
from ..tolerating import TolerantFetcher, TolerantStream
from .base import EpochIterator, Place
from .datapipes import distributed_settings

if TYPE_CHECKING:
    from ..dataloader import DataLoader


TRAINING = 0
"""The number under which training's own thread is told of as a worker, if it is the only one."""


class InlineIterator(EpochIterator):
    """Makes batches in the iterating thread, without workers."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        state = loader._penstock.resume_state
        super().__init__(loader, state)
        if loader.timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if isinstance(self._dataset, IterDataPipe | MapDataPipe):
            world_size, rank = distributed_settings()
            torch.utils.data.graph_settings.apply_sharding(self._dataset, world_size, rank)
        self._auto = loader._auto_collation
        self._gate = self._engine.gate
        batch_size = (loader.batch_size or 0) if self._auto else None
        self._shard = 0 if self._iterable else -1
        recorded = self._engine.options.record_samples
        self.costs = InlineCosts(recorded, batch_size)
        self._moments = Moments()
        tolerance = self._engine.tolerance()
        self._maker = BatchMaker(
            self._auto, loader.collate_fn, recorded, self._moments, self.costs.counts, tolerance=tolerance
        )
        self._cause = Cause.STARTUP
        """Why training waits for the next batch."""
        self._fixed = self._iterable or is_fixed(self._index_sampler)
        self._fetcher: MapFetcher | TolerantFetcher | IterableFetcher
        if self._iterable:
            saved = None if state is None else (shards_for(state, 0) or [None])[0]
            position = None if saved is None else saved["dataset"]
            is_over = saved is not None and saved.get("over", False)
            arguments = self._dataset, self._auto, loader.drop_last, position, bool(recorded)
            if tolerance is None:
                self._fetcher = IterableFetcher(*arguments, over=is_over)
            else:
                self._fetcher = TolerantStream(tolerance, *arguments, over=is_over)
            self._fetcher.ended = saved is not None and saved["ended"]
        elif tolerance is not None:
            self._fetcher = TolerantFetcher(self._dataset, self._auto, tolerance, self._base_seed)
        else:
            self._fetcher = MapFetcher(self._dataset, self._auto, bool(recorded), self._maker.memory)
        self.open(state)
        if isinstance(self._fetcher, TolerantFetcher):
            self._fetcher.epoch = self.number
        self._indices: Any = self._sampler_iter

    def _next(self) -> Any:
        times = self.ledger.times
        if not self.ended:
            self.ledger.enter(self.number)
        waited = self._wait_while_paused() if self._gate.until is not None else None
        if self._gate.closed:
            raise RuntimeError("the loader was closed while it was iterated over")
        batch, maker = self.place.batch, self._maker
        profiling = self._engine.profiling
        if profiling is not None:
            profiling.look_at_this_thread(TRAINING, self._moments.words)
        times.wait(self.ledger.asked if waited is None else waited, self._cause)
        collated = 0
        try:
            if not self._hand:
                self._draw()
            index = self._hand[0]
            try:
                maker.start(batch)
                data = maker.collate(maker.fetch(self._fetcher, index))
                if self.pin_mode == "accelerator":
                    collated = time.monotonic_ns()
                    data = self._pin(data, collated)
            except StopIteration:
                raise
            except Exception as error:
                if not by_signal_handler(error):  # else it is tried again
                    sample = maker.failed_sample()
                    self._blame = "dataset" if sample else "collate_fn", batch, sample
                    self._note(index, 0, 0)
                    self._count()
                    self._cause = Cause.STARVATION
                raise
        except StopIteration:
            self.close_epoch("ended")
            raise
        finally:
            self._moments.over()
            done = time.monotonic_ns()
        self._cause = Cause.STARVATION
        if maker.slow is not UNTIMED and self.costs.slowest.wants(maker.slow[1]):
            made = collated or done
            passage = Passage(TRAINING, self._fetcher.began, self._moments.fetched, made, made)
            self.costs.slowest.add_batch(batch, self._shard, index, maker.slow, passage, self.ledger.sightings)
        spans = self.ledger.spans
        if spans.stride and batch % spans.stride == 0:
            key = self.number, self._shard, batch
            spans.add(key, TRAINING, self._fetcher.began, self._moments.fetched, done, done)
            spans.yielded(key, done)
        self._note(index, maker.samples, measure(data)[1])
        return data

    def _draw(self) -> None:
        """Advance the sampler. What it gives is in `_hand` until its batch is counted; see `taking`."""
        times = self.ledger.times
        if not self._fixed:
            times.change(time.monotonic_ns(), Cause.SAMPLER)
        try:
            self._hand.extend(islice(self._indices, 1))
        except Exception:
            self._blame = "sampler", self.place.batch, ""
            raise
        finally:
            if not self._fixed:
                times.change(time.monotonic_ns(), self._cause)
        if not self._hand:
            raise StopIteration

    def _wait_while_paused(self) -> int:
        """Returns when that was over, ns."""
        times = self.ledger.times
        times.wait(time.monotonic_ns(), Cause.PAUSED)
        if self._gate.wait():
            self.ledger.emit(CommandEvent(time.time(), "resume", "applied", "timer", at_batch=self.place.batch))
        now = time.monotonic_ns()
        times.leave(now)
        return now

    def _pin(self, data: Any, collated: int) -> Any:
        self.ledger.times.change(collated, Cause.PIN_WAIT)
        data, nbytes = pin(data)
        self.ledger.pin.add(nbytes, time.monotonic_ns() - collated)
        return data

    def close_epoch(self, what: Literal["ended", "abandoned", "failed"], reason: str = "") -> None:
        if not self.ended:
            self.ledger.cost = self.costs.sample_cost()
            self.ledger.slowest = self.costs.slowest.recorded()
        super().close_epoch(what, reason)

    def _note(self, index: Any, samples: int, nbytes: int) -> None:
        place = self.place
        indices = None if self._iterable else index
        self._due(indices, samples, nbytes, Place(place.batch + 1, place.nbytes + nbytes))

    def _shards_state(self) -> State:
        if not isinstance(self._fetcher, IterableFetcher):
            return {}
        if not self._fetcher.stateful:
            return unsaved(CANNOT_SAVE) if self.place.batch else {"shards": None, "turn": 0}
        shard = {"dataset": self._fetcher.state_dict(), "ended": self._fetcher.ended, "generators": None}
        return {"shards": [shard], "turn": 0}


ROOTS = BELOW | codes_of(InlineIterator._next)
"""Code below which a profile's stacks begin."""
