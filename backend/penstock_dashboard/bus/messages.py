"""What replicas tell each other. Nothing secret: no token, code or cookie. A command is only rung for: it is stored."""

from __future__ import annotations

import msgspec
from penstock.protocol import Alert

from ..store import CommandStored, EventRecord, RunPlace


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What all of them have."""

    sender: str
    """The replica that it comes from."""


class Alive(Message, frozen=True):
    """Once a second, and when what is watched has changed."""

    watching: list[str] = []
    """Loaders that somebody there looks at."""
    overview: bool = False
    """Somebody there looks at the overview."""
    new: bool = False
    """It may have missed something: others shall tell what they have."""
    leaving: bool = False


class KnownLoader(msgspec.Struct, frozen=True, array_like=True):
    """A loader as another replica knows it."""

    key: int
    owner: int
    claim: int
    hello: bytes
    """`Hello`, MessagePack."""
    presence: str
    seen: float
    place: str
    """Where its run stands in the overview,"""
    placed: int
    """and the number of that place: of two, the later one holds."""
    state: str
    """What it says of itself."""
    lived: bool
    """It was well at some time: how it ends is news."""
    here: bool
    """It is connected at the sender."""


class Known(Message, frozen=True):
    """Loaders that have come, gone or changed."""

    loaders: list[KnownLoader]


class Places(Message, frozen=True):
    """Places of runs in the overview, which people gave them."""

    places: list[RunPlace]


class Alerted(Message, frozen=True):
    """Alerts that began, ended or read differently."""

    alerts: list[Alert]
    problems: list[str]
    """Why the sender could not tell somebody who should be told, as it stands."""


class Rows(Message, frozen=True):
    """Rows of the overview, JSON each, for those who look at it."""

    rows: list[bytes]


class Shown(Message, frozen=True):
    """The latest frame or the details of a loader, as viewers are sent them, for those who look at it."""

    loader: str
    frame: str = ""
    detail: str = ""


class Told(Message, frozen=True):
    """Events that are stored, for those who look at their loaders."""

    events: list[EventRecord]


class Ordered(Message, frozen=True):
    """A command for a loader at the receiver is in the store."""

    command: str


class Moved(Message, frozen=True):
    """A command has another state."""

    stored: CommandStored


class Forgotten(Message, frozen=True):
    """A loader is not known any more."""

    loader: str
    key: int


class SignedOut(Message, frozen=True):
    """A browser session has ended."""

    session: str
    """SHA-256 of what names it."""


class Ask(Message, frozen=True):
    """A question to one replica."""

    number: int
    what: str
    """rows, detail or load."""
    loader: str = ""


class Answer(Message, frozen=True):
    """The answer to one."""

    number: int
    body: bytes
    """JSON; empty: it does not know."""


AnyMessage = (
    Alive | Known | Places | Alerted | Rows | Shown | Told | Ordered | Moved | Forgotten | SignedOut | Ask | Answer
)
