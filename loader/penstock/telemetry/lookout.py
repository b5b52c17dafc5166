"""What workers and training are doing: when somebody asks, and when training waits unusually long."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from ..control import Ticket
from ..iteration.pooled import PooledIterator
from ..pool.looks import Seen
from ..pool.observer import Cause
from ..protocol import Hang, StackEvent
from ..stack import brief, cut, of_thread
from .hangs import Found, Wait

if TYPE_CHECKING:
    from ..engine import Engine


class Lookout:
    """Looks at the workers of one loader. It does not keep it alive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._ledger = engine.ledger

    def show(self, worker: int | None, ticket: Ticket, by: str, command: str) -> None:
        """Tell what a worker, all of them (None), or training (-1) are doing now, and then settle the ticket.

        Raises:
            ValueError: There is no such worker.
        """
        engine = self._engine()
        iterator = None if engine is None else next(iter(reversed(engine.pooled())), None)
        there = [] if iterator is None else sorted(each.id for each in iterator.pool.conductor.roster)
        if worker is not None and worker >= 0 and worker not in there:
            which = "there are none now" if not there else f"there are {', '.join(map(str, there))}"
            raise ValueError(f"there is no worker {worker}: {which}")

        def tell(seen: list[Seen]) -> None:
            for place, each in enumerate(seen):
                self._ledger.emit(_told(each, by, command, place, len(seen)))
            self._wake()
            ticket.settle("applied", len(there))

        if iterator is None or worker == -1 or not there:
            tell([self._training()])
        else:
            iterator.pool.look(there if worker is None else [worker], tell)

    def watch(self) -> None:
        """Look whether training waits unusually long, and tell of it. Called a few times a second, if published."""
        hangs, wait = self._ledger.hangs, self._wait()
        over = hangs.over(time.time(), wait)
        if over is not None:
            self._ledger.emit(over)
        if wait is None or not hangs.look(time.monotonic_ns(), wait):
            return
        cause = wait.cause

        def tell(seen: list[Seen]) -> None:
            found = Found(seen[0].worker, seen[0].stack, seen[0].silence) if seen else Found(-1, "", _nobody(cause))
            stall = hangs.found(time.monotonic_ns(), time.time(), found)
            if stall is not None:
                self._ledger.emit(stall)
                self._wake()

        engine = self._engine()
        current = None if engine is None else engine.current()
        if isinstance(current, PooledIterator) and self._ledger.times.waiting()[1]:
            current.pool.look(None, tell)
        else:
            tell([self._training()])

    def hang(self) -> Hang | None:
        """The wait of training that is under way, if it is unusually long."""
        return self._ledger.hangs.lasting(time.monotonic_ns(), self._wait())

    def _wait(self) -> Wait | None:
        """What training waits for in `next()`; None: it does not."""
        ledger, engine = self._ledger, self._engine()
        current = None if engine is None else engine.current()
        cause, _ = ledger.times.waiting()
        if cause is None or current is None or current.ended:
            return None
        epoch = current.pool.conductor.epoch if isinstance(current, PooledIterator) else None
        held = 0 if epoch is None else epoch.window.held
        return Wait(ledger.asked, current.number, current.place.batch, cause, held)

    def _training(self) -> Seen:
        """What the thread does that iterates, or the main thread if nobody does."""
        engine = self._engine()
        current = None if engine is None else engine.current()
        thread = threading.main_thread().ident or 0 if current is None else current.thread
        stack = of_thread(thread)
        silence = "" if stack else "no thread iterates, or several do"
        return Seen(-1, os.getpid(), "", -1 if current is None else current.place.batch, stack, silence)

    def _wake(self) -> None:
        engine = self._engine()
        if engine is not None and engine.publisher:
            engine.publisher.wake()


def _told(seen: Seen, by: str, command: str, place: int, among: int) -> StackEvent:
    about = cut(seen.stack), cut(brief(seen.stack)), seen.silence[:256], seen.state, seen.batch
    return StackEvent(time.time(), seen.worker, seen.pid, *about, by, command, place, among)


def _nobody(cause: Cause) -> str:
    """Why nobody can be looked at who has the batch that training waits for."""
    if cause is Cause.PIN_WAIT:
        return "it is finished, and in the pin stage"
    return "no worker has been started yet" if cause is Cause.STARTUP else "no worker has it yet"
