"""A finished batch on its way to training, wherever it lies."""

from __future__ import annotations

from typing import Any, Protocol


class Payload(Protocol):
    """What a worker's batch comes in. One thread at a time has it: the conductor's, the pin stage's, the iterating."""

    nbytes: int
    """Bytes of the tensors and arrays in it."""
    size: int
    """Bytes of memory that it takes."""

    def open(self, hold_bytes: int) -> Any:
        """Return the batch. May be called again after an interruption.

        It may be a view of memory that is used again when the batch dies; where training holds more than `hold_bytes`
        of such memory, it is a copy.
        """

    def lock(self) -> bool:
        """Page-lock the memory that it lies in; False: that is not possible."""

    def discard(self) -> None:
        """Nobody will open it: give its memory back."""


class Opened:
    """A batch that is as training gets it, in memory of this process."""

    __slots__ = ("nbytes", "size", "value")

    def __init__(self, value: Any, nbytes: int) -> None:
        self.value = value
        self.nbytes = self.size = nbytes

    def open(self, hold_bytes: int) -> Any:  # noqa: ARG002
        return self.value

    def lock(self) -> bool:
        return False

    def discard(self) -> None:
        self.value = None
