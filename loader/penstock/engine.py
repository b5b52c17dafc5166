"""The engine: what a loader has beyond torch's DataLoader. It is all of Penstock that an object of the user's carries.

Everything is here, under the one private attribute `_penstock` of the loader, so that a subclass or another library may
set and define whatever it likes. For the same reason nothing here calls a public method of the loader's, or reads an
attribute that torch's does not have. The engine does not keep the loader alive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import torch.utils.data
from msgspec import UNSET
from torch.utils.data import IterableDataset

from . import sampling
from .adoption.environment import wants_autotune
from .agent.options import RayWorkers, Remote
from .arguments import Options, given
from .budget import memory_limits
from .caching.dataset import find
from .checkpoint import State
from .control import Gate, Outcome, Ticket, check_profile, check_resume_after, check_workers
from .fingerprint import Fingerprint, changed, fingerprint
from .insight.cheaper import Cheaper
from .insight.judge import Judge
from .insight.line import WithoutLine
from .insight.load import summarize
from .insight.offer import Offers
from .insight.receipts import Change, Count
from .insight.replay import predict
from .iteration.base import EpochIterator
from .iteration.inline import ROOTS as INLINE
from .iteration.pooled import PooledIterator
from .pool.crews.threads import ROOTS as THREADS
from .pool.depth import Depth
from .pool.pool import wait_for_pools
from .profiling.profile import Profile
from .profiling.session import LAST_WORDS, Profiling
from .protocol import (
    Auto,
    CommandEvent,
    Load,
    LoaderState,
    Note,
    Order,
    Pause,
    Prediction,
    ProfilePart,
    Resize,
    Resume,
    ShowStack,
    Snapshot,
    Stats,
    TakeProfile,
    TuningEvent,
    Verdict,
    action_of,
)  # fmt: skip
from .quarantine import Quarantine
from .states import States
from .telemetry import snapshots
from .telemetry.address import resolve
from .telemetry.hangs import HangWatch
from .telemetry.ledger import Ledger
from .telemetry.lookout import Lookout
from .telemetry.published import PublishedLoader, config_of
from .telemetry.usage import Usage
from .tolerating import Tolerance
from .tuning.options import Autotune, meant
from .tuning.thread import BY as TUNER
from .tuning.thread import Tuning
from .usage import training_ns

if TYPE_CHECKING:
    from .dataloader import DataLoader

log = logging.getLogger("penstock")

LOAD_AGE = 0.5
"""Seconds for which what replay starts from is not made anew."""
ADVICE_AGE = 5.0
"""The same for the advice in `stats()`, which may be asked for with every batch: working it out takes some 50 ms."""
PATIENCE = 5.0
"""Seconds that a call of resize, pause or resume waits for its outcome at the most."""


class Engine:
    """Control, telemetry and checkpoints of one loader."""

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self.options = options
        self.resume_state: State | None = None
        """What the next `iter()` goes on from."""
        self.is_closed = False
        self._pending: int | None = None
        """Workers that were asked for and are not there yet."""
        self._stale = False
        """The dataset has changed: persistent workers are to be started anew."""
        self._tuned = meant(options.autotune) or _by_environment(loader, options)
        """How the loader is to be tuned; None: not at all."""
        self.ledger = Ledger()
        self._attach(loader)

    def _attach(self, loader: DataLoader[Any]) -> None:
        """Belong to this loader in this process, from now on."""
        self._loader = weakref.ref(loader)
        self._owner = os.getpid()
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self.gate = Gate()
        self.ledger.hangs = HangWatch(int(self.options.stack_after * 1e9), self.ledger.recording.turns)
        self.depth = Depth()
        """How deep the windows of its pools are."""
        self.lookout = Lookout(self)
        self.publisher: Any = None
        """None: not decided yet; False: none."""
        self._usage = Usage()
        self._judge: Judge | None = None
        self._judging = threading.Lock()
        self._without = WithoutLine()
        self._offers = Offers()
        self._cheaper = Cheaper()
        self.tuning: Tuning | None = None
        """The tuner at work; None: it is off, or no epoch has begun."""
        self._produced = Count()
        self._load: tuple[float, Load] | None = None
        """What replay started from last, and when that was."""
        self._pending_ticket: Ticket | None = None
        self._control = threading.RLock()
        self._iterators: tuple[weakref.ref[EpochIterator], ...] = ()
        """The newest last. Replaced and never changed: others read it without a lock."""
        self._length: int | None = None
        """Batches in an epoch, as far as that is known."""
        self.states = States(self)
        self._sent: Fingerprint | None = None
        """The dataset as persistent workers have it; None: they do not, or it does not matter."""
        self._told_changed = False
        self.quarantine: Quarantine | None = None
        """Bad samples, if they are tolerated."""
        if self.options.on_error != "raise":
            length = None if self.is_iterable else sampling.length_of(loader.dataset)
            found = self.ledger.found_bad
            self.quarantine = Quarantine(self.options.max_errors, self.options.quarantine, length, found)
            self.tell_quarantine()
        self.profiling: Profiling | None = None
        """The profile that is being taken."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process: pools, locks, the publisher."""
        kept = ("options", "resume_state", "is_closed", "_pending", "_stale", "_tuned")
        return {name: self.__dict__[name] for name in kept}

    def belongs_to(self, loader: DataLoader[Any]) -> bool:
        reference = self.__dict__.get("_loader")  # not there when it was unpickled just now
        return reference is not None and reference() is loader

    def copy_for(self, loader: DataLoader[Any]) -> Engine:
        """An engine with the same options for a copy of the loader."""
        engine = Engine.__new__(Engine)
        engine.__dict__.update(self.__getstate__())
        engine.ledger = Ledger()
        engine._attach(loader)
        return engine

    @property
    def loader(self) -> DataLoader[Any]:
        loader = self._loader()
        if loader is None:
            raise RuntimeError("the loader is gone")
        return loader

    # -- iteration ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An epoch begins: `iter()` was called."""
        self.check_open()
        if self._owner != os.getpid():
            self._start_over_after_fork()
        self._learn_length()
        self._publish()
        loader = self.loader
        with self._control:
            self.check_open()
            self._start_tuning()
            if self._pending is not None:
                loader.num_workers, self._pending = self._pending, None
            self._pend(None).settle("applied", loader.num_workers, 0)

    def register(self, iterator: EpochIterator) -> None:
        """An iterator begins an epoch: from now on it is the current one, and controlled."""
        others = [weakref.ref(each) for each in self._living() if each is not iterator]
        self._iterators = (*others, weakref.ref(iterator))
        self.resume_state = None
        profiling = self.profiling
        if profiling is not None and isinstance(iterator, PooledIterator):
            iterator.pool.profile(profiling.profile.rate, profiling)

    def leave(self, iterator: EpochIterator) -> None:
        """An iterator's epoch is over."""
        self.states.note_end(iterator)

    def tell_quarantine(self) -> None:
        """Those that are known from before: no error of this run."""
        for sample in [] if self.quarantine is None else self.quarantine.entries:
            self.ledger.bad.add(sample)

    def tolerance(self) -> Tolerance | None:
        """What workers that are started now should do about bad samples."""
        if self.quarantine is None:
            return None
        loader, options = self.loader, self.options
        # A sampler that picks its own samples does so for a reason: then only others of the batch stand in.
        length = None if self.is_iterable else sampling.length_of(loader.dataset)
        length = length if length and sampling.covers(loader._index_sampler, length) else None
        known = set() if self.is_iterable else self.quarantine.known()
        return Tolerance(options.on_error == "replace", options.retries, known, length)

    def note_dataset(self, dataset: Any) -> None:
        """Workers that will outlive the epoch are given the dataset as it is now."""
        shared = self.options.workers == "thread" and not self.is_iterable  # they have it as training has
        looks = self.loader.persistent_workers and self.options.refresh != "never" and not shared
        self._sent = fingerprint(dataset) if looks else None

    def take_refresh(self, dataset: Any) -> bool:
        """Should persistent workers be started anew? True once."""
        stale, self._stale = self._stale or self._has_changed(dataset), False
        return stale

    def _has_changed(self, dataset: Any) -> bool:
        """Has the dataset changed since workers were given it, so that it should be sent? If not, it may be said."""
        what = None if self._sent is None else changed(self._sent, fingerprint(dataset))
        if what is not None and self.options.refresh == "warn" and not self._told_changed:
            self._told_changed = True
            warnings.warn(
                f"{type(dataset).__qualname__}.{what} of loader {self.options.name} has changed since its persistent "
                'workers were started, and they have it as it was: call refresh(), or give refresh="auto" to send '
                'it whenever it has changed, or refresh="never" if they need not have it.',
                stacklevel=5,
            )
        return what is not None and self.options.refresh == "auto"

    def next_workers(self) -> int:
        """Workers of the next epoch."""
        return self._pending or self.loader.num_workers

    def given_prefetch_factor(self) -> int | None:
        """What the user gave; None: nothing."""
        return given(self.loader.prefetch_factor)

    def note_length(self, length: int) -> None:
        """Training has asked for the length."""
        if not self.is_iterable:
            self._length = length

    def _learn_length(self) -> None:
        """Here, and not when somebody looks: only the thread that iterates may ask samplers."""
        told = None if self.is_iterable else sampling.told_length(self.loader._index_sampler)
        self._length = self._length if told is None else told

    def _living(self) -> list[EpochIterator]:
        return [iterator for reference in self._iterators if (iterator := reference()) is not None]

    def current(self) -> EpochIterator | None:
        """The iterator that training used last, if it is still there."""
        number = self.ledger.current
        return next((each for each in reversed(self._living()) if each.number == number), None)

    def _start_over_after_fork(self) -> None:
        """This is a forked copy of the process: pools, if there are any, belong to the original.

        So does the loader's place on the dashboard, if it has one. Where each rank is a fork of a process that only
        made the loader, it has none yet.
        """
        published, before, loader = bool(self.publisher), self.ledger, self.loader
        self.ledger = Ledger()
        self.ledger.epochs, self.ledger.digest = before.epochs, before.digest
        loader._iterator = None
        self._attach(loader)
        self.publisher = False if published else None

    # -- live control ---------------------------------------------------------------------------------------

    def request(self, order: Order, *, by: str = "local", command: str = "") -> Ticket:
        """Begin what is asked and return at once: the one way in, for calls and for commands.

        Args:
            order: What is asked.
            by: Who asks: "local" for a call, or the name of a token.
            command: The command's id; empty for a call.

        Raises:
            TypeError, ValueError: The order says something that this loader cannot do.
            RuntimeError: The loader is closed.
        """
        with self._control:
            self.check_open()
            ticket = self._ticket(order, by, command)
            match order:
                case Resize():
                    before, workers = self.loader.num_workers, check_workers(order.workers, self.options.max_workers)
                    self._resize(workers, ticket, by)
                    self._keep_receipt(before, workers, ticket, by, command)
                case Pause():
                    self._pause(check_resume_after(order.resume_after), ticket)
                case Resume():
                    self._resume(ticket)
                case TakeProfile():
                    self._stop_profiling()
                    if order.seconds != 0:
                        self.start_profiling(order.seconds, order.rate, command)
                    ticket.settle("applied", self.loader.num_workers)
                case Auto():
                    self._tune(order.on, ticket)
                case ShowStack():
                    self.lookout.show(order.worker, ticket, by, command)
            return ticket

    def _resize(self, workers: int, ticket: Ticket, by: str) -> None:
        if self.tuning is not None:
            if by != TUNER:
                self.tuning.pin(workers)
            elif self.tuning.pinned is not None:
                raise RuntimeError(f"the number of workers is pinned to {self.tuning.pinned}")
        self._pending = workers
        self._pend(ticket)
        ticket.watch(self._resized)
        running = self._running()
        for iterator in running:
            newest = iterator is running[-1]
            iterator.pool.resize(workers, ticket if newest else Ticket("resize", workers))
        if not running:
            ticket.settle("pending", self.loader.num_workers, reason="it takes effect with the next epoch")

    def _keep_receipt(self, before: int, workers: int, ticket: Ticket, by: str, command: str) -> None:
        """What is predicted of a change will be set against what is measured, if somebody is to see it."""
        if workers == before or not self.publisher:
            return
        receipts, change = self.ledger.receipts, Change(before, workers, predict(self.load(), workers), by, command)
        ticket.watch(lambda settled: receipts.change(change) if settled.outcome.state == "applied" else None)

    def _resized(self, ticket: Ticket) -> None:
        loader, asked = self._loader(), ticket.outcome.asked
        applied = ticket.outcome.state == "applied" and ticket is self._pending_ticket
        if applied and asked is not None and loader is not None:
            loader.num_workers, self._pending = asked, None

    def _pend(self, ticket: Ticket | None) -> Ticket:
        """Keep the ticket of the newest resize, which may have to wait for the next epoch; return the one before."""
        before, self._pending_ticket = self._pending_ticket, ticket
        if ticket is not None and before is not None:
            reason = f"a newer resize asked for {ticket.outcome.asked}"
            before.settle("superseded", self.loader.num_workers, reason=reason)
        return before or Ticket("resize")

    def _pause(self, seconds: float | None, ticket: Ticket) -> None:
        self.gate.pause(seconds)
        self._tell_pools(ticket, "pause", seconds)

    def _resume(self, ticket: Ticket) -> None:
        self.gate.resume()
        self._tell_pools(ticket, "resume")

    def _tune(self, on: bool, ticket: Ticket) -> None:
        """Switch the tuner on, anew if it is on, or off."""
        workers = self.loader.num_workers
        self._end_tuning()
        if on:
            self._tuned = self._tuned or Autotune()
            self._start_tuning()
        else:
            self._tuned = None
        self.ledger.emit(TuningEvent(time.time(), "on" if on else "off", workers, workers))
        ticket.settle("applied", workers)

    def _start_tuning(self) -> None:
        """Begin to tune, if that is asked for and an epoch has begun. A loader in a worker is its user's affair."""
        if self._tuned is None or self.tuning is not None or torch.utils.data.get_worker_info() is not None:
            return
        if self.publisher is None:  # no epoch has begun
            return
        loader = self.loader
        if loader.num_workers == 0 and self._pending is None:
            self._pending = self._tuned.min_workers
        workers = self._pending or loader.num_workers
        self.tuning = Tuning(self, self._tuned, workers, self.options.max_workers)
        self.tuning.start()

    def _end_tuning(self) -> None:
        if self.tuning is not None:
            self.tuning.stop()
            self.tuning = None

    def note(self, text: str) -> None:
        """Tell whoever watches what the training says of itself."""
        if not isinstance(text, str):
            raise TypeError(f"a note must be a text, but got {text!r}")
        iterator, ledger = self.current(), self.ledger
        batch = ledger.batch if iterator is None or iterator.ended else iterator.place.batch
        ledger.emit(Note(time.time(), text[:256], ledger.current, batch))
        if self.publisher:
            self.publisher.wake()

    def start_profiling(self, seconds: float | None, rate: float, command: str = "") -> Profiling:
        """Begin to look at which lines workers are. One that is under way ends.

        Args:
            seconds: For how long; None: until it is stopped.
            rate: Looks a second at each worker.
            command: The id of the command that asked for it, if one did.

        Raises:
            TypeError, ValueError: That is no time, or no rate.
            RuntimeError: The loader is closed, or there can be no more threads.
        """
        seconds, rate = check_profile(seconds, rate)
        with self._control:
            self.check_open()
            self._stop_profiling()
            profile = Profile(command or f"local-{uuid.uuid4().hex[:12]}", time.time(), rate)
            engine, ledger = weakref.ref(self), self.ledger

            def emit(part: ProfilePart) -> None:
                ledger.hottest = profile.hot_lines()
                loader = engine()
                if loader is not None and loader.publisher:
                    ledger.emit(part)
                    loader.publisher.wake()

            def end(profiling: Profiling) -> None:
                loader = engine()
                if loader is not None:
                    loader._forget_profiling(profiling)

            profiling = Profiling(profile, seconds, INLINE | THREADS, emit, end, wanted=lambda: engine() is not None)
            self.profiling = profiling
            ledger.sightings = profiling.sightings
            try:
                profiling.start()
                for iterator in self.pooled():
                    iterator.pool.profile(rate, profiling)
            except BaseException:  # Ctrl-C, say: its thread may run or not
                profiling.stop()
                self._forget_profiling(profiling)
                raise
        return profiling

    def _stop_profiling(self) -> None:
        """End the profile that is being taken, if there is one."""
        if self.profiling is not None:
            self.profiling.stop()

    def _forget_profiling(self, profiling: Profiling) -> None:
        """Nobody is to be looked at any more for this one."""
        if self.profiling is profiling:
            self.profiling = self.ledger.sightings = None
            for iterator in self.pooled():
                iterator.pool.profile(0, profiling)

    def pooled(self) -> list[PooledIterator]:
        """Those that have a pool, the newest last."""
        return [each for each in self._living() if isinstance(each, PooledIterator)]

    def wait(self, ticket: Ticket) -> Outcome:
        return ticket.wait(PATIENCE)

    def refresh(self) -> None:
        self.check_open()
        self._stale = True

    def close(self) -> None:
        loader = self.loader
        with self._control:
            self.is_closed = True
            profiling = self.profiling
            self._stop_profiling()
            iterators, loader._iterator = self._living(), None
        for iterator in iterators:
            iterator.close_epoch("abandoned")
            if isinstance(iterator, PooledIterator):
                iterator.close()
        wait_for_pools(self.ledger)
        if profiling is not None:
            profiling.over.wait(2 * LAST_WORDS)
        self.gate.close()
        self._end_tuning()
        if self.publisher:
            self.publisher.wake()  # it sees that the loader is closed and says goodbye

    def check_open(self) -> None:
        """Raise RuntimeError if the loader is closed."""
        if self.is_closed:
            raise RuntimeError("the loader is closed")

    def _running(self) -> list[PooledIterator]:
        """Pools with an epoch under way, the newest last."""
        live = [each for each in self._living() if isinstance(each, PooledIterator) and each.running()]
        return sorted(live, key=lambda each: each.number)

    def _ticket(self, order: Order, by: str, command: str) -> Ticket:
        """A ticket whose outcome becomes an event."""
        action, asked = action_of(order), order.workers if isinstance(order, Resize) else None
        ticket, ledger = Ticket(action, asked, self.loader.num_workers), self.ledger

        def settled(ticket: Ticket) -> None:
            outcome = ticket.outcome
            if isinstance(order, ShowStack) and outcome.state == "applied":
                return  # what was seen says so itself
            ledger.emit(
                CommandEvent(
                    time.time(),
                    action,
                    outcome.state,
                    by,
                    command,
                    asked,
                    outcome.before,
                    outcome.actual,
                    outcome.at_batch,
                    int(outcome.took * 1e6),
                    outcome.reason[:256],
                )
            )

        ticket.watch(settled)
        return ticket

    def _tell_pools(self, ticket: Ticket, action: str, *arguments: Any) -> None:
        running = self._running()
        for iterator in running:
            last = iterator is running[-1]
            getattr(iterator.pool, action)(*arguments, ticket if last else None)
        if not running:
            current = self.current()
            at = current.place.batch if current is not None and not current.ended else 0
            ticket.settle("applied", self.loader.num_workers, at)

    # -- telemetry ------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Start to publish, if somebody is to see it. A loader in a worker is its user's affair."""
        if self.publisher is not None or torch.utils.data.get_worker_info() is not None:
            return
        self.publisher = False
        options = self.options
        if resolve(options.monitor) is None:
            return
        from .telemetry.publisher import publish  # brings websockets, which others need not load

        try:
            self.publisher = publish(PublishedLoader(self.loader), options.monitor, options.publish_interval)
        except Exception:
            log.warning("loader %s cannot be published. Training goes on.", options.name, exc_info=True)
        else:
            self.ledger.spans.watch(time.monotonic_ns())

    def stats(self) -> Stats:
        """A snapshot, and what it and those before it say together."""
        snapshot = self.snapshot()
        with self._judging:
            verdict = Verdict() if self._judge is None else self._judge.verdict()
            network = [] if self._judge is None else self._judge.meter.machines()
        if verdict.tone in ("warn", "bad") and verdict.limit != "failure":
            load = self._recent_load(ADVICE_AGE if self._offers.asked else LOAD_AGE)
            config = config_of(self.loader)
            verdict = self._offers.add(verdict, load, config)
            verdict = self._cheaper.add(self._without.add(verdict, load), load, config, lambda: snapshot)
        return Stats(**msgspec.structs.asdict(snapshot), verdict=verdict, network=network)

    def snapshot(self, seq: int = 0) -> Snapshot:
        """How everything stands; the judge is told, too."""
        snapshot = self._take_snapshot(seq)
        with self._judging:  # the publisher's thread, and whoever calls `stats`
            if self._judge is None:
                self._judge = Judge(config_of(self.loader))
            self._judge.take(snapshot)
        return snapshot

    def _take_snapshot(self, seq: int) -> Snapshot:
        if self.publisher is None:  # no epoch has begun
            self._learn_length()
        iterator, cache = self.current(), find(self.loader.dataset)
        pool = iterator.pool if isinstance(iterator, PooledIterator) else None
        return snapshots.take(
            seq,
            self.ledger,
            iterator,
            pool,
            self._usage,
            state=self._state(iterator),
            length=self._length,
            pending=self._pending,  # before the target, which follows it in another thread
            target=self.loader.num_workers,
            memory_budget=self.options.memory_budget,
            quarantined=[] if self.quarantine is None else self.quarantine.entries,
            tuned=None if self.tuning is None else self.tuning.state(),
            cache=None if cache is None else cache.usage(),
            hang=self.lookout.hang(),
        )

    def load(self, since: float = 0.0) -> Load:
        """What replay needs to know; of what was recorded from a moment of the monotonic clock on."""
        loader, ledger, stats = self.loader, self.ledger, self._take_snapshot(0)
        budget, ceiling = memory_limits(self.options.memory_budget)
        (spent, batches), processor = ledger.processor_mark, training_ns()
        workers = self.options.workers
        local = workers.local if isinstance(workers, Remote) else None
        machines = [] if stats.machines is UNSET else stats.machines
        return summarize(
            ledger.recording.since(since) if since else ledger.recording,
            at=stats.at,
            workers=loader.num_workers,
            allowed=stats.processors.allowed,
            others=self._usage.others(),
            training=(processor - spent) / 1e9 / max(ledger.batches - batches, 1) if ledger.batches > batches else 0.0,
            ordinary=(stats.cost.p50_us / 1e6, stats.cost.p99_us / 1e6),
            prefetch_factor=self.given_prefetch_factor() or 0,
            memory_budget=budget,
            memory_ceiling=ceiling,
            in_order=bool(loader.in_order),
            sharded=self.is_iterable,
            local=local,
            elsewhere=0.0 if isinstance(workers, RayWorkers) else float(sum(each.processors for each in machines)),
            carried=0.0 if local is None or self._judge is None else self._judge.carried(),
        )

    def predict(self, workers: int, memory_budget: int | None, ordinary_samples: bool) -> Prediction:
        check_workers(workers, self.options.max_workers)
        return predict(self._recent_load(), workers, memory_budget=memory_budget, ordinary_samples=ordinary_samples)

    def _recent_load(self, age: float = LOAD_AGE) -> Load:
        """The same for all who ask within a moment: a range of numbers is asked for one by one."""
        known, now = self._load, time.monotonic()
        if known is None or now - known[0] > age or known[1].workers != self.loader.num_workers:
            known = self._load = now, self.load()
        return known[1]

    def note_progress(self, snapshot: Snapshot) -> None:
        """Look whether it can be said what a change has brought. Called with every snapshot that is published."""
        receipt = self.ledger.receipts.take(self._produced.moment(snapshot))
        if receipt is not None:
            self.ledger.emit(receipt)

    def _state(self, iterator: EpochIterator | None) -> LoaderState:
        if self.ledger.errors.fatal:
            return "failed"
        if self.is_closed:
            return "closed"
        if self.ledger.failed or (isinstance(iterator, PooledIterator) and iterator.pool.failed()):
            return "failed"
        if self.gate.status()[0]:
            return "paused"
        if iterator is not None and not iterator.ended:
            return "running"
        return "finished" if self.ledger.epochs else "idle"


def _by_environment(loader: DataLoader[Any], options: Options) -> Autotune | None:
    """Under `penstock run --autotune` every loader is tuned that has workers and may be controlled.

    One without workers stays so: its random numbers are training's own.
    """
    return Autotune() if wants_autotune() and loader.num_workers and options.allow_control else None
