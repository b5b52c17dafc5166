"""What carries news between replicas: one small interface, and the kinds beside it (`alone`, `on_redis`).

A bus promises nothing: a message may be lost, and whoever starts has missed all before. What must be true is in the
store; the bus says where to look, and shows what is fleeting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Bus(ABC):
    """Carries bytes to other replicas. Used on the event loop only."""

    def __init__(self) -> None:
        self.on_message: Callable[[bytes], None] = lambda _message: None
        """Called with every message of somebody else."""
        self.on_restored: Callable[[], None] = lambda: None
        """Called when messages may have been lost, and no more are."""
        self.warning = ""
        """Not empty: nobody can be reached, and why."""

    @abstractmethod
    async def start(self, name: str, among: str) -> None:
        """Begin to listen under a name of its own, to those who share `among`: the same records."""

    @abstractmethod
    async def stop(self) -> None:
        """Send what waits, if that is possible at once, and end."""

    @abstractmethod
    def send(self, message: bytes, to: str = "") -> None:
        """Send to one replica, or to all; never waits."""
