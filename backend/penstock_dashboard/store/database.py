"""What keeps the records: one small interface, and the kinds beside it (`sqlite/`, `postgres/`).

Everything here waits for a disk or a network, so nothing is called on the event loop. What writes is called by the one
thread of `writer.py`; what reads, by any of a few reading threads.

A loader's messages are taken under a **claim**. Each connection of a loader makes a new one, which voids the one before
it, at whatever replica that was made; a batch is stored without the records of claims that are void. So of two replicas
that both believe a loader to be theirs, one stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
from penstock.protocol import History

from .batch import Batch, CommandStored, EventRecord, LoaderRecord, Mark, RunChangeStored, RunPlace


class Unavailable(Exception):
    """The database cannot be reached; the text says which, and why."""


class AskTheWriter(Exception):
    """Only the writer's thread can answer now."""


class Wanted(msgspec.Struct, frozen=True):
    """A loader that connects."""

    id: str
    incarnation: str
    owner: int
    hello: bytes
    """Its `Hello`, MessagePack."""
    at: float
    """When it came, Unix time."""


class Claim(msgspec.Struct, frozen=True):
    """A loader whose messages may be stored."""

    key: int
    """The loader's number, never given to another."""
    owner: int
    """Number of the token that it came with first."""
    number: int
    """Grows with every claim to this loader."""
    last_seq: int
    """Last message of this incarnation that is stored; -1: none."""
    place: RunPlace | None = None
    """Where its run stands; None: nobody gave it a place."""
    moved: bool = False
    """Another replica may have had it since this one did."""


class LinkStored(msgspec.Struct, frozen=True):
    """A link that signs in once, as it is kept: nobody could sign in with this."""

    digest: str
    """Of its code."""
    token: str
    """Name of the token that it signs in with."""
    proof: str
    """That the token is still the same: made of the code and the token's secret."""
    until: float
    """Unix time."""


class Known(msgspec.Struct):
    """What was remembered when the database was opened."""

    loaders: list[tuple[LoaderRecord, Mark]]
    owners: dict[str, int]
    """Token → its number."""
    places: list[RunPlace] = []
    """Of runs that were given one."""
    identity: str = ""
    """Random, made with the tables: the same for all who use them."""


class HistoryAsked(msgspec.Struct, frozen=True):
    """Which part of a loader's past, and how finely."""

    key: int
    loader: str
    start: float | None
    """On the loader's clock; None: from its first record on."""
    end: float
    points: int
    """The most buckets that the answer may have."""
    interval: float
    """Seconds between two of its samples."""
    now: float
    """The moment on the loader's clock."""


class EventsAsked(msgspec.Struct, frozen=True):
    """Which events of a loader."""

    key: int
    loader: str
    after: int = 0
    before: int | None = None
    kinds: Sequence[str] = ()
    """Empty: all."""
    limit: int = 1000
    newest: bool = True
    """If there are more: the newest of them, or the oldest."""
    most_bytes: int = 16 << 20
    """At least one event, and no more than fit."""


class CommandsAsked(msgspec.Struct, frozen=True):
    """Which commands."""

    loader: str | None = None
    run: str | None = None
    idempotency: str | None = None
    """Those that came with this key."""
    since: float = 0.0
    limit: int = 1000


class Database(ABC):
    """Keeps the records."""

    warning = ""
    """Not empty: what is stored now is not kept as was asked for, and why."""
    share: Callable[[], tuple[int, int]] = staticmethod(lambda: (0, 1))
    """This replica's place among all that use the database, and how many there are: its part of the upkeep."""

    @property
    @abstractmethod
    def in_memory(self) -> bool:
        """Nothing outlives the process."""

    @property
    @abstractmethod
    def dropped(self) -> int:
        """Bytes of records that were dropped before their time, for want of space."""

    @property
    @abstractmethod
    def cap(self) -> int:
        """Bytes that all records may take."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """Bytes that one transaction may write."""

    @property
    @abstractmethod
    def most_written(self) -> int:
        """Bytes of one message's events, as they are stored."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether `tend` has more to do."""

    # ------------------------------------------------------------------------------- on the writer's thread

    @abstractmethod
    def begin(self) -> None:
        """The calling thread is the one that writes. Called once."""

    @abstractmethod
    def owner(self, token: str) -> int:
        """The number under which a token's records are filed; a new token gets one."""

    @abstractmethod
    def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        """Claim loaders, in this order; those that are new are recorded. Everything claimed before is stored first."""

    @abstractmethod
    def store(self, batch: Batch) -> Batch:
        """Store messages, whole, with the marks that say so, in one transaction. Returns what was stored: without the
        records of void claims, whose loaders are in `void`.
        """

    @abstractmethod
    def store_loaders(self, records: Sequence[LoaderRecord]) -> None:
        """Store what is known of loaders by now."""

    @abstractmethod
    def tend(self) -> None:
        """Between two batches, and about once a second: whatever is due."""

    @abstractmethod
    def close(self) -> None:
        """Called last."""

    def give_up(self) -> None:  # noqa: B027  most never wait for anything
        """What cannot be stored now is not waited for any longer. Called from another thread, at the end."""

    @abstractmethod
    def put_place(self, run: str, place: str, change: RunChangeStored) -> RunPlace:
        """Give a run another place in the overview; `change` is stored if it had another one. Returns what is stored.
        A place ends with the last loader of the run.
        """

    @abstractmethod
    def put_link(self, link: LinkStored, most: int) -> None:
        """Keep a link that signs in once; beyond so many, the oldest are void."""

    @abstractmethod
    def take_link(self, digest: str) -> LinkStored | None:
        """A link, which is void from now on, for everybody."""

    # ----------------------------------------------------------------- on any thread; may raise `AskTheWriter`

    @abstractmethod
    def known(self, snapshots: int) -> Known:
        """Everything of use at the start; of last snapshots the latest, up to so many bytes in all."""

    @abstractmethod
    def history(self, asked: HistoryAsked) -> History:
        """Rates over time."""

    @abstractmethod
    def events(self, asked: EventsAsked) -> list[EventRecord]:
        """Events of one loader in order."""

    @abstractmethod
    def commands(self, asked: CommandsAsked) -> list[CommandStored]:
        """Commands, newest first."""

    @abstractmethod
    def command(self, identifier: str) -> CommandStored | None:
        """One command."""

    @abstractmethod
    def run_changes(self, run: str | None, limit: int) -> list[bytes]:
        """What was done to runs, or to one, as JSON; the newest first."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes on disk, or in memory, that are in use."""
