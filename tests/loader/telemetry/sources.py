"""A source that counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.protocol import Command, Config, EpochEvent, Event, Outcome, Resize, Snapshot


class CountingSource:
    def __init__(self, name: str = "train", control: bool = True) -> None:
        self.name = name
        self.started = time.time()
        self.gone = self.was_interrupted = False
        self.commands: list[Command] = []
        self.count = 0
        self.failing: str = ""
        """What `apply` and `snapshot` raise."""
        self._control = control
        self._events: list[Event] = []
        self.happened = 0

    def happen(self, number: int = 1, reason: str = "") -> None:
        """Events whose epochs are counted up, so that a lost one shows."""
        events = [EpochEvent(time.time(), "started", self.happened + n, reason=reason) for n in range(number)]
        self.happened += number
        self._events.extend(events)

    def config(self) -> Config:
        return Config(dataset="Counting", num_workers=2, control=self._control)

    def snapshot(self, seq: int) -> Snapshot:
        if self.failing:
            raise RuntimeError(self.failing)
        self.count += 1
        return Snapshot(seq, time.time(), "running", batches=self.count)

    def load(self) -> None:
        """Nothing is known of what its batches need."""

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def died_of(self, error: BaseException) -> None:
        pass

    def apply(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        self.commands.append(command)
        if self.failing:
            raise RuntimeError(self.failing)
        answer(Outcome(command.id, "delivered", time.time()))
        order = command.order
        # Outcomes come from another thread, as those of a pool do.
        applied = Outcome(
            command.id, "applied", time.time(), actual=order.workers if isinstance(order, Resize) else None
        )
        threading.Thread(target=answer, args=(applied,)).start()
