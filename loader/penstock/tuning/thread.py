"""The thread that tunes one loader: it looks four times a second, asks the tuner, and asks the engine for its steps.

Training never waits for it. It does not keep the loader alive, and ends when the loader is gone, closed, or is not to
be tuned any more. What people ask for goes first: `Engine.request` notes a pin before it resizes, under the lock under
which it would take a resize of ours, so that none of ours can come after it.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Literal

from ..agent.options import Remote
from ..insight.offer import best
from ..pool.signals import Latch
from ..protocol import Resize, Tuned, TuningEvent
from ..telemetry.identity import rank_and_world_size
from .lease import this_host
from .memory import memory
from .options import Autotune
from .readings import Readings
from .tuner import Step, Tuner
from .turns import Turns
from .words import tuned

if TYPE_CHECKING:
    from ..engine import Engine

LOOK = 0.25
"""Seconds between two looks."""
BY = "autotune"
"""Who asks, in the events of the tuner's resizes."""

What = Literal["pinned", "try", "keep", "back", "hold", "wake", "halve"]

log = logging.getLogger("penstock")


class Tuning:
    """A tuner at work on one loader."""

    def __init__(self, engine: Engine, options: Autotune, workers: int, most: int) -> None:
        self._engine = weakref.ref(engine)
        self._name = engine.options.name
        most = min(most, options.max_workers or most)
        self._least = min(options.min_workers, most)
        start = min(max(workers, self._least), most)
        self._most = most
        self._tuner = Tuner(start, most, least=self._least, tolerance=options.tolerance, seed=self._by_replay)
        self.pinned: int | None = None
        """The number of workers that a person has chosen; None: nobody has."""
        workers_are = engine.options.workers
        self._readings = Readings(workers_are.local if isinstance(workers_are, Remote) else None)
        self._turns: Turns | None = None
        self._world = rank_and_world_size()[1]
        self._unseen = ""
        """Why no other rank can be seen; empty: they could be."""
        self._remembered = (0.0, (False, False))
        self._over = Latch()
        self._thread: threading.Thread | None = None

    def _by_replay(self, since: float) -> tuple[int, float] | None:
        """The number that replay would choose by what was recorded from a moment on."""
        engine = self._engine()
        load = None if engine is None else engine.load(since)
        found = None if load is None else best(load, self._most)
        return None if found is None else (found.workers, found.batches)

    def start(self) -> None:
        """Begin; does nothing if it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"penstock-tuner-{self._name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask it to end. A resize that it has asked for stays."""
        self._over.set()

    def pin(self, workers: int) -> None:
        """A person has chosen a number. Called under the engine's lock."""
        self.pinned = workers

    def state(self) -> Tuned:
        """For the snapshot."""
        turns, engine, pinned = self._turns, self._engine(), self.pinned
        ranks = 1 if turns is None else turns.ranks
        held = self._tuner.held if pinned is None else pinned
        target = held if engine is None else engine.loader.num_workers
        return tuned(self._tuner.state if pinned is None else "pinned", held, target, ranks, self._alone(ranks))

    def _alone(self, ranks: int) -> str:
        """Why it is tuned for itself although the training has more ranks; empty: it is not, or it has none."""
        if ranks > 1 or self._turns is None or self._world < 2:
            return ""
        return self._unseen or "no other rank is seen on this host"

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they belong to the main thread
        host = this_host()
        rank = host.join()
        if rank is None:
            self._unseen = host.alone or "too many loaders on this host"
            log.info("loader %s is tuned for itself: %s", self._name, self._unseen)
        turns = self._turns = Turns(self._tuner, rank)
        try:
            while not self._over.wait(LOOK):
                engine = self._engine()
                if engine is None or engine.is_closed:
                    break
                self._look(engine, turns, time.monotonic())
                del engine  # it is not kept alive while this waits
        except Exception:  # whatever it is, training goes on with the workers there are
            log.warning("loader %s is not tuned any more", self._name, exc_info=True)
        finally:
            turns.leave()

    def _look(self, engine: Engine, turns: Turns, now: float) -> None:
        reading = self._readings.take(engine.snapshot(), now, turns.others_use(), self._memory(now))
        if self.pinned is not None:
            if self._tuner.state != "pinned":
                self._tuner.pin(self.pinned)
                turns.end()
                self._tell(engine, "pinned", self.pinned, self.pinned, "somebody has chosen the number of workers")
            return
        step = turns.observe(reading, self._readings.uses)
        if step is not None:
            self._follow(engine, step)

    def _memory(self, now: float) -> tuple[bool, bool]:
        """Read once a second."""
        if now - self._remembered[0] >= 1.0:
            self._remembered = now, memory()
        return self._remembered[1]

    def _follow(self, engine: Engine, step: Step) -> None:
        if step.workers != step.before:
            try:
                engine.request(Resize(step.workers), by=BY)
            except RuntimeError:  # it was closed, or pinned, just now
                return
        self._tell(engine, step.what, step.workers, step.before, step.why, step.predicted, step.measured)

    @staticmethod
    def _tell(
        engine: Engine,
        what: What,
        workers: int,
        before: int,
        why: str,
        predicted: float | None = None,
        measured: float | None = None,
    ) -> None:
        engine.ledger.emit(TuningEvent(time.time(), what, workers, before, why[:256], predicted, measured))
