"""A loader as the publisher sees it. It does not keep the loader alive."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.multiprocessing

from .. import sampling
from ..agent.options import RayWorkers, Remote
from ..budget import memory_limits
from ..control import Ticket
from ..protocol import Command, Config, Event, Load, Outcome, Snapshot
from . import snapshots
from .usage import Usage

if TYPE_CHECKING:
    from ..dataloader import DataLoader


class PublishedLoader:
    """A `DataLoader` as a source of the publisher."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        engine = loader._penstock
        self.name = engine.options.name
        self.started = engine.ledger.made
        self._loader = weakref.ref(loader)
        self._ledger = engine.ledger
        self._config = config_of(loader)
        self._last: Snapshot | None = None

    @property
    def gone(self) -> bool:
        loader = self._loader()
        return loader is None or loader._penstock.is_closed

    @property
    def was_interrupted(self) -> bool:
        return self._ledger.was_interrupted()

    def config(self) -> Config:
        return self._config

    def snapshot(self, seq: int) -> Snapshot:
        loader = self._loader()
        if loader is None:
            return self._final(seq)
        self._last = loader._penstock.snapshot(seq)
        loader._penstock.note_progress(self._last)
        return self._last

    def load(self) -> Load | None:
        loader = self._loader()
        return None if loader is None else loader._penstock.load()

    def _final(self, seq: int) -> Snapshot:
        """Of a loader that nobody has any more: what it did is in its ledger, how it was is in the last snapshot."""
        last, config = self._last, self._config
        return snapshots.take(
            seq,
            self._ledger,
            None,
            None,
            Usage(),
            state="failed" if self._ledger.errors.fatal else "closed",
            length=None if last is None else last.length,
            target=config.num_workers if last is None else last.target,
            pending=None,
            memory_budget=config.memory_budget,
            cache=None if last is None else last.cache,
        )

    def died_of(self, error: BaseException) -> None:
        self._ledger.died_of(error)

    def take_events(self) -> list[Event]:
        loader = self._loader()
        if loader is not None:
            loader._penstock.lookout.watch()
        if self.gone:
            self._ledger.left_behind()
        if loader is None and (stall := self._ledger.hangs.over(time.time(), None)) is not None:
            self._ledger.emit(stall)
        return self._ledger.take_events()

    def apply(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        received = time.monotonic()

        def tell(state: Any, ticket: Ticket | None = None, reason: str = "") -> None:
            outcome = None if ticket is None else ticket.outcome
            answer(
                Outcome(
                    command.id,
                    state,
                    time.time(),
                    None if outcome is None else outcome.actual,
                    None if outcome is None else outcome.at_batch,
                    int((time.monotonic() - received) * 1e6),
                    (reason or (outcome.reason if outcome is not None else ""))[:256],
                )
            )

        loader = self._loader()
        if loader is None:
            tell("rejected", reason="the loader is gone")
            return
        try:
            ticket = loader._penstock.request(command.order, by=command.by, command=command.id)
        except (TypeError, ValueError, RuntimeError) as error:
            tell("rejected", reason=str(error))
            return
        tell("delivered")
        ticket.watch(lambda settled: tell(settled.outcome.state, settled))


def config_of(loader: DataLoader[Any]) -> Config:
    """How a loader was made."""
    # What torch takes for a number or a truth value, msgspec may not: it encodes no subclass of int, say.
    context = loader.multiprocessing_context or torch.multiprocessing.get_context()
    engine = loader._penstock
    sampler = "" if engine.is_iterable else sampling.kind_of(loader._index_sampler)
    return Config(
        dataset=type(loader.dataset).__qualname__[:256],
        style="iterable" if engine.is_iterable else "map",
        dataset_length=sampling.length_of(loader.dataset),
        batch_size=None if loader.batch_size is None else int(loader.batch_size),
        sampler=sampler[:256],
        num_workers=int(loader.num_workers),
        max_workers=engine.options.max_workers,
        start_method=_start_method(engine.options.workers, context),
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        in_order=bool(loader.in_order),
        prefetch_factor=None if loader.prefetch_factor is None else int(loader.prefetch_factor),
        timeout=float(loader.timeout),
        memory_budget=memory_limits(engine.options.memory_budget)[0],
        control=engine.options.allow_control,
        local=workers.local if isinstance(workers := engine.options.workers, Remote) else None,
    )


def _start_method(workers: str | Remote, context: Any) -> str:
    """How workers come to be, in a word."""
    if isinstance(workers, Remote):
        return "ray" if isinstance(workers, RayWorkers) else "agents"
    return "thread" if workers == "thread" else context.get_start_method() or ""
