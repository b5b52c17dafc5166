"""A pool as the iterating thread sees it: start an epoch, add tasks, take batches, close."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..control import Ticket
from ..failures import raise_error
from ..pinning import PinStage
from ..profiling.session import Sink
from ..protocol import PinMode
from ..taking import popping
from .conductor import HURRY, Conductor
from .crews.crew import Crew
from .depth import TORCHS, Depth, most_tasks
from .epoch import Epoch
from .inbox import Inbox
from .looks import Seen
from .map_window import MapWindow
from .observer import Clock, Observer
from .requests import (
    BeginEpoch,
    ChangeWorkers,
    Foresee,
    GoOn,
    Hold,
    LeaveEpoch,
    LookAt,
    Revived,
    SampleStacks,
    TakeStack,
)  # fmt: skip
from .sharding import Shard, ShardedWindow
from .signals import Latch
from .tasks import Recipe
from .window import Finished, Limits, Task, Window

SHARD_LOOKAHEAD = 32
"""The same for each shard of an iterable-style dataset."""

_exiting = False
"""The interpreter is coming to its end."""

_open: set[Conductor] = set()
"""Until the conductor has done its last."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pool is made with."""

    crews: Sequence[Callable[[Inbox, int], Crew]]
    """Make the crews, given the inbox and the number below which ids of workers are."""
    recipe: Recipe
    workers: int
    max_workers: int
    max_retries: int
    in_order: bool
    prefetch_factor: int | None
    """Tasks in flight per worker; None: as many as `depth` finds."""
    budget: int
    """Bytes of finished batches;"""
    ceiling: int
    """or up to so many, if two batches a worker need them."""
    pin_mode: PinMode
    observer: Observer
    """Told of everything that happens."""
    family: object
    """The pools of one loader have the same one. It leads neither to a pool nor to the loader."""
    depth: Depth
    """How deep the window is; the pools of one loader have the same one."""
    sample_timeout: float | None = None
    """Seconds that a sample of a map-style dataset may take before its worker is ended."""


CLOSED = "the loader was closed while it was iterated over"


class PoolTimeoutError(Exception):
    """Nothing came in time."""


class Pool:
    """A pool of workers, as the iterating thread sees it. Whoever makes one closes it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._owner = os.getpid()
        self._lost_before = 0
        """Losses of a crew up to the last one after which a batch came."""
        self._taken = self._taken_at_loss = 0
        wait_for_pools(settings.family, most=1)
        self.pin: PinStage | None = None
        self.crews: list[Crew] = []
        self._kept: dict[Crew, object] = {}
        """What lives as long as the pool, and leads to the recipe."""
        conductor = None
        undo = contextlib.ExitStack()
        try:
            inbox = Inbox()
            undo.callback(inbox.close)
            for make in settings.crews:
                crew = make(inbox, 2 * settings.max_workers)
                self.crews.append(crew)
                undo.callback(crew.end)
                self._kept[crew] = crew.revive(settings.recipe)
            if settings.pin_mode in ("accelerator", "mlock"):
                self.pin = PinStage(settings.pin_mode, settings.observer.pin)
                undo.callback(self.pin.close)
            conductor = self._conductor = self._make_conductor(inbox)
            _open.add(conductor)
            conductor.start()
        except BaseException:  # see point 5 of the conductor's argument
            if conductor is None:
                undo.close()
            elif conductor.claim():
                try:
                    _open.discard(conductor)
                    undo.close()
                finally:
                    conductor.over.set()
            else:
                conductor.dismiss(HURRY)
            raise

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Whoever has a pool closes it, but may be interrupted before. At the interpreter's end `_close_all` has."""
        conductor = self.__dict__.get("_conductor")
        if conductor is not None and not finalizing() and os.getpid() == self._owner and not conductor.closing:
            conductor.dismiss(HURRY)

    def _make_conductor(self, inbox: Inbox) -> Conductor:
        settings = self.settings
        return Conductor(
            tuple(self.crews),
            inbox,
            settings.workers,
            2 * settings.max_workers,
            settings.max_retries,
            settings.depth,
            self.pin.put if self.pin is not None else None,
            functools.partial(_release, self.pin),
            settings.observer,
            settings.family,
            settings.recipe.tolerance is not None,
            settings.sample_timeout,
        )

    @property
    def conductor(self) -> Conductor:
        return self._conductor

    def failed(self) -> bool:
        """Can the epoch under way not go on?"""
        epoch = self._conductor.epoch
        return epoch is not None and epoch.error is not None

    def limit_tasks(self, workers: int) -> int:
        """How many tasks may ever be in flight with so many workers."""
        return most_tasks(self.settings.prefetch_factor, workers)

    def prepare(
        self,
        number: int,
        times: Clock,
        workers: int,
        first_batch: int = 0,
        shards: list[Any] | None = None,
        turn: int = 0,
        shared_seed: int | None = None,
    ) -> Epoch:
        """Make an epoch that may be started.

        `shards` are the saved states of an iterable-style dataset's shards, `turn` is the one to go on with.
        `shared_seed` is for DataPipes.
        """
        settings = self.settings
        limits = Limits(settings.depth.tasks(workers), settings.budget, settings.ceiling, TORCHS * workers)
        window: Window
        if settings.recipe.iterable:
            saved = [None] * workers if shards is None else shards
            window = ShardedWindow(
                limits,
                settings.in_order,
                shards=[Shard(n, n % workers, state, adopted=shards is not None) for n, state in enumerate(saved)],
                per_shard=settings.prefetch_factor or SHARD_LOOKAHEAD,
                next_batch=first_batch,
                turn=turn,
                stateful=settings.recipe.stateful,
            )
        else:
            window = MapWindow(limits, settings.in_order, next_batch=first_batch)
        return Epoch(number, window, times, shared_seed)

    def start(self, epoch: Epoch, workers: int) -> None:
        """Start an epoch, be it foreseen or not; another one that is foreseen is thrown away."""
        self._conductor.request(BeginEpoch(epoch, workers))

    def foresee(self, epoch: Epoch) -> None:
        """Have its tasks done when there is nothing else to do: it will probably be started next."""
        self._conductor.request(Foresee(epoch))

    def add(self, epoch: Epoch, tasks: list[Task]) -> None:
        """Move tasks to the window. The conductor is rung only when workers wait for some, and not for every one."""
        waiting = epoch.window.waiting
        waiting.extend(popping(tasks.pop, len(tasks)))
        if self._conductor.dispatcher.hungry and len(waiting) >= self._enough(epoch):
            self._conductor.doorbell.ring()

    def take(self, epoch: Epoch, timeout: float, hand: list[Finished]) -> bool:
        """Wait for the next batch and put it into `hand`; False at the end of an iterable-style epoch."""
        ready, conductor = epoch.ready, self._conductor
        if conductor.lost and not conductor.closing:
            self._revive(epoch)
        if conductor.wanting:
            self._supply()
        if not ready:
            if not self._wait(epoch, timeout):
                return False
        elif conductor.dispatcher.hungry and epoch.taken % self._enough(epoch) == 0:
            conductor.doorbell.ring()
        try:
            hand.extend(popping(ready.popleft, 1))
        except IndexError:
            raise RuntimeError(CLOSED) from None
        self._taken += 1
        return True

    def stack(self, task: Task | None) -> str:
        """The Python stack of the worker that has the task."""
        answered = Latch()
        answer: list[str] = []

        def take(text: str) -> None:
            answer.append(text)
            answered.set()

        self._conductor.request(TakeStack(take, task))
        answered.wait(2.0)
        return answer[0] if answer else ""

    def abandon(self, epoch: Epoch) -> None:
        epoch.abandoned = True
        if self._alive():
            self._conductor.request(LeaveEpoch(epoch))

    def resize(self, workers: int, ticket: Ticket) -> None:
        self._conductor.request(ChangeWorkers(workers, ticket))

    def pause(self, resume_after: float | None, ticket: Ticket | None) -> None:
        self._conductor.request(Hold(resume_after, ticket))

    def resume(self, ticket: Ticket | None) -> None:
        self._conductor.request(GoOn(ticket))

    def look(self, workers: Collection[int] | None, answer: Callable[[list[Seen]], None]) -> None:
        """Look at what these workers are doing, or the one for whose batch training waits, and say so to `answer`.

        That is called in another thread, soon, or at once if the pool has ended.
        """
        self._conductor.request(LookAt(answer, workers))

    def profile(self, rate: float, sink: Sink) -> None:
        """Look so many times a second at which line workers are, and tell `sink`; 0: no longer."""
        self._conductor.request(SampleStacks(rate, sink))

    def close(self, grace: float = 5.0, *, wait: bool = True) -> None:
        """End every process and thread of the pool. Workers may take `grace` seconds to finish their batch.

        Without `wait` they may still be on their way out when this returns.
        """
        if os.getpid() != self._owner:
            return
        conductor = self._conductor
        conductor.dismiss(grace)
        if threading.current_thread() in self._threads():
            return  # the garbage collector may run anywhere
        try:
            if wait:
                conductor.over.wait()
            else:
                conductor.dismissed.wait()
        except KeyboardInterrupt:
            conductor.dismiss(HURRY)
            raise

    def _threads(self) -> list[Any]:
        """Those whose end the conductor waits for, and its own."""
        pin = [] if self.pin is None else [self.pin.thread]
        return [self._conductor, *pin, *(handle for crew in self.crews for handle in crew.handles())]

    def handles(self) -> list[Any]:
        """What those get who look for torch's worker processes; waits a little for those that are being made."""
        conductor = self._conductor
        for _ in range(200):
            if conductor.closing or conductor.roster.present() >= conductor.target:
                break
            time.sleep(0.01)
        return [handle for crew in self.crews for handle in crew.handles()]

    def pass_on_interrupt(self) -> None:
        """Ctrl-C came in a finalizer, where it is lost: have it come again when the pool is at its end."""
        self._conductor.passes_on_interrupt = True

    def is_closing(self) -> bool:
        return self._conductor.closing

    def _alive(self) -> bool:
        return os.getpid() == self._owner and not self._conductor.closing

    def _enough(self, epoch: Epoch) -> int:
        """How many tasks are worth waking the conductor for: few when little is finished ahead."""
        return max(1, len(epoch.ready) // 4)

    def _wait(self, epoch: Epoch, timeout: float) -> bool:
        conductor, signal, ready = self._conductor, epoch.signal, epoch.ready
        start, paused_before = time.monotonic(), conductor.paused_for()
        epoch.times.wait(time.monotonic_ns(), conductor.cause())
        try:
            while True:
                signal.prepare()
                conductor.doorbell.ring()  # after it has seen that somebody waits, it says what for
                if ready:
                    return True
                if epoch.error is not None:
                    raise_error(epoch.last_error())
                if epoch.abandoned or conductor.over.is_set():
                    if _exiting:
                        threading.Event().wait()  # a daemon thread that the interpreter leaves behind
                    raise RuntimeError(CLOSED)
                if epoch.is_over():
                    return False
                if conductor.lost and not conductor.closing:
                    self._revive(epoch)
                if conductor.wanting:
                    self._supply()
                left = timeout - (time.monotonic() - start - (conductor.paused_for() - paused_before))
                if timeout <= 0 or conductor.paused:
                    signal.wait(5.0)
                elif left <= 0:
                    raise PoolTimeoutError
                else:
                    signal.wait(min(left, 5.0))
        finally:
            signal.waiting = False
            epoch.times.leave(time.monotonic_ns())

    def _supply(self) -> None:
        """Give the recipe to crews that ask for it: here, because only the iterating thread may pickle."""
        wanting = self._conductor.wanting
        while wanting:
            self._kept[wanting[0]] = wanting[0].revive(self.settings.recipe)
            wanting.popleft()  # now: Ctrl-C before this, and it is tried again

    def _revive(self, epoch: Epoch) -> None:
        """Start lost crews again: here, because only the iterating thread may fork or pickle."""
        conductor = self._conductor
        if self._taken != self._taken_at_loss:
            self._taken_at_loss, self._lost_before = self._taken, conductor.losses - len(conductor.lost)
        times = conductor.losses - self._lost_before
        while conductor.lost:
            crew = conductor.lost[0]
            if times > self.settings.max_retries:
                epoch.fail(RuntimeError(f"{crew.name} died {times} times without a batch in between"))
                raise_error(epoch.last_error())
            self._kept[crew] = crew.revive(self.settings.recipe)
            conductor.lost.popleft()  # now: Ctrl-C before this, and it is tried again
            conductor.request(Revived())


def _release(pin: PinStage | None, conductor: Conductor) -> None:
    """The last thing that a conductor does."""
    if pin is not None:
        pin.close()
    _open.discard(conductor)


def wait_for_pools(family: object, most: int = 0) -> None:
    """Wait until at most so many of a loader's pools are on their way out."""
    ending = [conductor for conductor in _open.copy() if conductor.family is family and conductor.closing]
    for conductor in ending[: len(ending) - most]:
        try:
            conductor.over.wait()
        except KeyboardInterrupt:
            conductor.dismiss(HURRY)
            raise


@atexit.register
def _close_all() -> None:
    """Workers must not outlive the interpreter, nor hold up its end."""
    global _exiting
    _exiting = True
    conductors = _open.copy()
    for conductor in conductors:  # all of them first, so that together they take as long as one
        conductor.dismiss(HURRY)
    for conductor in conductors:
        conductor.over.wait()


def _forget_all() -> None:
    """In a forked copy of training, which has no conductors: for it all pools are over."""
    for conductor in _open:
        conductor.over = Latch()  # another thread may have held the lock of the one before
        conductor.over.set()
    _open.clear()


os.register_at_fork(after_in_child=_forget_all)
