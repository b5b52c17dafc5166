"""What the publisher needs of whatever it publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..arguments import seconds
from ..protocol import Command, Config, Event, Load, Outcome, Snapshot


class Source(Protocol):
    """A loader of ours, or something else that is watched. Every method may be called from any thread."""

    name: str
    """How the dashboard calls it."""
    started: float
    """When it was made, Unix time."""

    @property
    def gone(self) -> bool:
        """Nobody holds the loader any more, or it was closed: the publisher says goodbye."""

    @property
    def was_interrupted(self) -> bool:
        """The last epoch did not come to its end: by a `break`, say, or an exception of training's."""

    def config(self) -> Config:
        """How the loader was made."""

    def snapshot(self, seq: int) -> Snapshot:
        """The loader at this moment. Takes no lock that loading needs."""

    def load(self) -> Load | None:
        """What replay needs to know; None: nothing is known of it. Called every few seconds."""

    def take_events(self) -> list[Event]:
        """What has happened since the last call, oldest first. What did not fit is counted in `Snapshot.dropped`."""

    def died_of(self, error: BaseException) -> None:
        """The process ends with this exception. Called once, before the last snapshot."""

    def apply(self, command: Command, answer: Callable[[Outcome], None]) -> None:
        """Apply a command without waiting. `answer` is called for every step of it, from any thread."""


def check_interval(interval: object) -> float:
    return seconds("publish_interval", interval, 0.01, 60)
