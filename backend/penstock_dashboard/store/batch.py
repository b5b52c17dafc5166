"""What the event loop hands to the writer thread: everything that came since the last transaction."""

from __future__ import annotations

import msgspec

from ..store.samples import Sample


class LoaderRecord(msgspec.Struct, frozen=True):
    """A loader as it is remembered."""

    key: int
    """Its number in the database, never given to another."""
    id: str
    hello: bytes
    """The last `Hello`, MessagePack."""
    snapshot: bytes | None
    """The last `Snapshot`, MessagePack."""
    presence: str
    seen: float


class Mark(msgspec.Struct, frozen=True):
    """How far one loader's messages have come."""

    incarnation: str
    seq: int


class EventRecord(msgspec.Struct, frozen=True):
    id: int
    key: int
    """The loader's number."""
    loader: str
    """The loader's id."""
    at: float
    """When it was received, by the backend's clock: grows with the id."""
    kind: str
    body: bytes
    """The event, JSON."""


class CommandStored(msgspec.Struct, frozen=True):
    id: str
    loader: str
    run: str
    at: float
    idempotency: str
    """Who, for what, with which Idempotency-Key; empty without one."""
    request: str
    """Fingerprint of the body that came with that key."""
    record: bytes
    """The `CommandRecord`, JSON."""


class Batch(msgspec.Struct):
    samples: list[tuple[int, Sample]] = []
    marks: dict[int, Mark] = {}
    events: list[EventRecord] = []
    loaders: dict[int, LoaderRecord] = {}
    commands: dict[str, CommandStored] = {}
    forgotten: list[int] = []
    """Loaders whose every trace shall go."""

    def __bool__(self) -> bool:
        return bool(self.samples or self.marks or self.events or self.loaders or self.commands or self.forgotten)
