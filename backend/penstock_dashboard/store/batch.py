"""What the event loop hands to the writer thread: everything that came since the last transaction."""

from __future__ import annotations

import msgspec

from .samples import Sample


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
    owner: int = 0
    """Number of the token that the loader came with first."""
    claim: int = 0
    """Under which this was learnt."""

    @property
    def size(self) -> int:
        return len(self.hello) + len(self.snapshot or b"")


class Mark(msgspec.Struct, frozen=True):
    """How far one loader's messages have come."""

    incarnation: str
    seq: int
    claim: int = 0
    """Under which its messages came."""


class EventRecord(msgspec.Struct, frozen=True):
    """An event as it is stored."""

    id: int
    """0 until it is stored. Grows with time among the events of one loader."""
    key: int
    """The loader's number."""
    loader: str
    """The loader's id."""
    at: float
    """When it was received, by the backend's clock: grows with the id."""
    kind: str
    body: bytes
    """The event, JSON."""
    owner: int = 0
    """As in `LoaderRecord`."""


class RunPlace(msgspec.Struct, frozen=True):
    """Where a run stands in the overview."""

    run: str
    place: str = "shown"
    number: int = 0
    """Grows with every place that a person gives to any run, at whatever replica: of two, the later one holds. 0:
    nobody gave it one."""


class RunChangeStored(msgspec.Struct, frozen=True):
    """What was done to a run, as it is stored."""

    at: float
    run: str
    record: bytes
    """The `RunChange`, JSON."""


class CommandStored(msgspec.Struct, frozen=True):
    """A command as it is stored."""

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


ROW = 200
"""What a record costs beside its content, about, in bytes: in memory, and in pages and indices on disk."""


def on_disk(size: int) -> int:
    """Bytes of pages that a row takes, about: large ones fill pages of their own."""
    return size + size // 2 + ROW if size < 2000 else (size // 4080 + 1) * 4096


class Batch(msgspec.Struct):
    """Everything that one transaction writes."""

    samples: list[tuple[int, Sample]] = []
    marks: dict[int, Mark] = {}
    events: list[EventRecord] = []
    loaders: dict[int, LoaderRecord] = {}
    commands: dict[str, CommandStored] = {}
    forgotten: list[int] = []
    """Loaders whose every trace shall go."""
    changes: list[RunChangeStored] = []
    """What was done to runs."""
    deleted: list[str] = []
    """Runs whose commands shall go."""
    size: int = 0
    """Bytes that it will take, about; loaders apart, which are stored some at a time."""
    shares: dict[int, int] = {}
    """Owner → bytes of its messages and loaders."""
    void: frozenset[int] = frozenset()
    """Loaders that somebody else has claimed meanwhile: nothing of theirs is stored."""

    def __bool__(self) -> bool:
        messages = self.samples or self.marks or self.events
        return bool(messages or self.loaders or self.commands or self.forgotten or self.changes or self.deleted)

    def add_sample(self, key: int, owner: int, sample: Sample) -> None:
        self.samples.append((key, sample))
        self._count(owner, len(sample.rates) + ROW)

    def add_mark(self, key: int, mark: Mark) -> None:
        self.size += 0 if key in self.marks else ROW
        self.marks[key] = mark

    def add_event(self, record: EventRecord) -> None:
        self.events.append(record)
        self._count(record.owner, on_disk(len(record.body)))

    def add_loader(self, record: LoaderRecord) -> None:
        before = self.loaders.get(record.key)
        share = self.shares.get(record.owner, 0)
        self.shares[record.owner] = share + record.size - (before.size if before is not None else 0)
        self.loaders[record.key] = record

    def add_command(self, stored: CommandStored) -> None:
        before = self.commands.get(stored.id)
        self.size += len(stored.record) - (len(before.record) if before is not None else -ROW)
        self.commands[stored.id] = stored

    def add_forgotten(self, key: int) -> None:
        self.forgotten.append(key)
        self.loaders.pop(key, None)
        self.size += ROW

    def add_change(self, stored: RunChangeStored) -> None:
        self.changes.append(stored)
        self.size += len(stored.record) + ROW

    def add_deleted(self, run: str) -> None:
        self.deleted.append(run)
        self.commands = {key: command for key, command in self.commands.items() if command.run != run}
        self.size += ROW

    def without(self, void: frozenset[int]) -> Batch:
        """The same without the messages of some loaders."""
        if not void:
            return self
        return msgspec.structs.replace(
            self,
            samples=[(key, sample) for key, sample in self.samples if key not in void],
            marks={key: mark for key, mark in self.marks.items() if key not in void},
            events=[record for record in self.events if record.key not in void],
            void=void,
        )

    def _count(self, owner: int, size: int) -> None:
        self.size += size
        self.shares[owner] = self.shares.get(owner, 0) + size
