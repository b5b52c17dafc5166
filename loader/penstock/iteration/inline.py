"""Loading in the training thread itself (`num_workers=0`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from ..checkpoint import State
from ..collating import collate_into, default_collate
from ..fetching import IterableFetcher, MapFetcher, sample_count
from ..pinning import pin
from ..protocol import CommandEvent
from ..telemetry.costs import InlineCosts
from ..telemetry.sizes import measure
from ..telemetry.times import Cause
from .base import EpochIterator
from .datapipes import apply_seed, distributed_settings

if TYPE_CHECKING:
    from ..dataloader import DataLoader


TRAINING = 0
"""The number under which training's own thread is told of as a worker, if it is the only one."""


class InlineIterator(EpochIterator):
    def __init__(self, loader: DataLoader[Any], state: State | None) -> None:
        dataset, _ = apply_seed(loader)
        super().__init__(loader, state)
        if loader.timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if isinstance(dataset, IterDataPipe | MapDataPipe):
            world_size, rank = distributed_settings()
            torch.utils.data.graph_settings.apply_sharding(dataset, world_size, rank)
        self._auto = loader._auto_collation
        self._gate = loader.gate
        collate = loader.collate_fn
        if collate in (default_collate, torch.utils.data.default_collate):
            collate = _collate
        self._collate = collate
        batch_size = (loader.batch_size or 0) if self._auto else None
        self._shard = 0 if self._iterable else -1
        self.costs = InlineCosts(loader.record_samples, batch_size)
        self._cause = Cause.STARTUP
        """Why training waits for the next batch."""
        self.open(loader, state)
        self._indices: Any = self._sampler_iter
        self._fetcher: MapFetcher | IterableFetcher
        time_all = bool(loader.record_samples)
        if self._iterable:
            self._fetcher = _resumed(dataset, self._auto, loader.drop_last, state, time_all)
        else:
            self._fetcher = MapFetcher(dataset, self._auto, time_all)

    def _next(self) -> Any:
        times = self.ledger.times
        if not self.ended:
            self.ledger.enter(self.number)
        if self._gate.until is not None:
            times.wait(time.monotonic_ns(), Cause.PAUSED)
            if self._gate.wait():
                self.ledger.emit(CommandEvent(time.time(), "resume", "applied", "timer", at_batch=self.yielded))
            times.leave(time.monotonic_ns())
        if self._gate.closed:
            raise RuntimeError("the loader was closed while it was iterated over")
        times.wait(time.monotonic_ns(), self._cause)
        try:
            index = next(self._indices)
            try:
                samples = self._fetcher.fetch(index)
                fetched = time.monotonic_ns()
                data = self._collate(samples)
                if self.pin_mode == "accelerator":
                    data = self._pin(data)
            except StopIteration:
                raise
            except Exception:
                # A batch that failed counts as yielded: asked for the next, the loader goes on behind it.
                self._note(index, 0, 0)
                self.yielded += 1
                self._cause = Cause.STARVATION
                raise
        except StopIteration:
            self.close_epoch("ended")
            raise
        finally:
            done = time.monotonic_ns()
            times.leave(done)
        self._cause = Cause.STARVATION
        self.costs.add_batch(self.yielded, self._shard, index, self._fetcher)
        spans = self.ledger.spans
        if spans.stride and self.yielded % spans.stride == 0:
            key = self.number, self._shard, self.yielded
            spans.add(key, TRAINING, self._fetcher.began, fetched, done, done)
            spans.yielded(key, done)
        self._note(index, sample_count(self._auto, samples), measure(data)[1])
        return data

    def _pin(self, data: Any) -> Any:
        collated = time.monotonic_ns()
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
        indices = None if self._iterable else index
        self.ledger.add(self.number, self.yielded, indices, self.base_seed, samples, nbytes)

    def _shards_state(self) -> State:
        if not isinstance(self._fetcher, IterableFetcher):
            return {}
        if not self._fetcher.stateful:
            raise ValueError(
                "this iterable-style dataset cannot save its position: neither it nor its iterator has "
                "state_dict() and load_state_dict()"
            )
        shard = {"dataset": self._fetcher.state_dict(), "ended": self._fetcher.ended, "generators": None}
        return {"shards": [shard], "turn": 0}


def _resumed(dataset: Any, auto: bool, drop_last: bool, state: State | None, time_all: bool) -> IterableFetcher:
    shards = None if state is None else state.get("shards")
    saved = shards[0] if shards else None
    fetcher = IterableFetcher(dataset, auto, drop_last, saved and saved["dataset"], time_all)
    if saved:
        fetcher.ended = saved["ended"]
    return fetcher


def _collate(samples: Any) -> Any:
    return collate_into(samples, _nowhere)


def _nowhere(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """There is no slot to collate into."""
