"""Everything about the backend that can be set, with the defaults that a person gets who sets nothing."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field, structs

from .alerts.rules import Rules

VERSION = "0.1.0"

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

RESERVED_DESCRIPTORS = 96
"""Descriptors that are not for connections: the database, the listener, files of the pages, and as many connections as
are accepted before the first of them can be closed again."""
MIN_SEATS = 16
MANY_LOADERS = 4096
"""More loaders than this are taken only if the process may have as many more descriptors."""


class Retention(Struct, frozen=True):
    """How long each kind of record is kept, in seconds."""

    samples: float = HOUR
    """Rates at full resolution, and batch spans."""
    ten_seconds: float = DAY
    """Rates in buckets of 10 s."""
    minutes: float = 30 * DAY
    """Rates in buckets of 1 min, events, commands, and loaders that are gone."""
    max_bytes: int = 4 << 30
    """The database is kept below this size by dropping the oldest records early."""


class Limits(Struct, frozen=True):
    """What one client, or all together, may ask of the backend. `SECURITY.md` states each with its number."""

    publishers: int = 13824
    """Loaders connected at a time."""
    viewers: int = 256
    """Viewers connected at a time."""
    guests: int = 512
    """Connections for requests with a token; beyond it, the one that came first is hung up on."""
    strangers: int = 1024
    """Connections that have not shown a token; beyond it, the one that came first is hung up on."""
    stranger_rate: float = 200.0
    """Requests per second of all who show no token, for long; the others wait for their turn."""
    stranger_burst: float = 200.0
    """Requests of theirs at once."""
    share: float = 0.75
    """Of the publishers, the viewers and the loaders, so much may belong to one token."""
    loaders: int = 16384
    """Loaders known at a time; beyond it, the ones gone longest of the token that has most are forgotten."""
    loaders_per_run: int = 12288
    """Loaders known at a time of one run and one token; its own ones gone longest are forgotten first."""
    hello: int = 8 << 10
    """Bytes of a loader's first message."""
    snapshots: int = 32 << 20
    """Bytes of last snapshots that are kept for one token's loaders; beyond it, the oldest go."""
    message_rate: float = 400.0
    """Messages per second that one loader may send for long; a faster one is read more slowly."""
    message_burst: float = 4000.0
    """Messages that it may send at once, for example after an outage."""
    byte_rate: float = 1 << 20
    """Bytes per second that one loader may send for long; a faster one is read more slowly."""
    byte_burst: float = 8 << 20
    """Bytes that it may send at once: twice what a loader keeps in an outage."""
    token_byte_rate: float = 16 << 20
    """Bytes per second that all loaders of one token may send for long."""
    token_byte_burst: float = 64 << 20
    """Bytes that they may send at once."""
    batch: int = 8 << 20
    """Bytes that wait for the disk (less with a small `max_bytes`); beyond it, nothing more is read from loaders, and
    beyond half of it for one token nothing more of that."""
    patience: float = 10.0
    """Seconds for which a loader's message may wait for room; then its connection is closed."""
    bad_messages: int = 3
    """After so many messages that are not understood, the connection is closed."""
    fragments: int = 1024
    """Frames that one websocket message may come in."""
    body: int = 64 << 10
    """Bytes in the body of an HTTP request."""
    handshake: float = 10.0
    """Seconds within which a request's head, its body, or the first message on a websocket must be complete."""
    idle: float = 15.0
    """Seconds within which the next request on a connection must be complete."""
    answer: float = 60.0
    """Seconds within which a request must be answered and the answer read."""
    unread: float = 20.0
    """Seconds for which a websocket may leave unread what was sent to it."""
    unread_bytes: int = 64 << 20
    """Bytes that wait for all clients together to read them; beyond it, those with most are hung up on."""
    answer_bytes: int = 16 << 20
    """Bytes of events in one answer, even if more were asked for."""
    viewer_events: int = 1000
    """Events that wait for one viewer; beyond it the oldest are dropped and a gap is shown."""
    viewer_bytes: int = 1 << 20
    """Bytes of events that wait for one viewer; likewise."""
    viewer_commands: int = 8192
    """Commands whose news wait for one viewer; beyond it, it is closed."""
    viewer_messages: float = 20.0
    """Messages per second that one viewer may send for long."""
    encoded: int = 16 << 20
    """Bytes of frames and details that are kept encoded for all viewers."""
    login_failures: int = 10
    """Failed sign-ins at once from one address."""
    login_rate: float = 1 / 6
    """Failed sign-ins per second for long."""
    links: int = 64
    """One-time links that wait to be used; beyond it, the oldest is void."""
    commands: int = 60
    """Commands at once by one token."""
    command_rate: float = 5.0
    """Commands per second by one token for long."""
    open_commands: int = 16
    """Commands under way for one loader."""
    history_points: int = 5000

    @property
    def connections(self) -> int:
        """TCP connections of any kind at a time."""
        return self.publishers + self.viewers + self.guests + self.strangers

    def within(self, descriptors: int) -> Limits:
        """The same with fewer seats, if a process may not have that many descriptors open."""
        seats = max(MIN_SEATS, descriptors - RESERVED_DESCRIPTORS)
        if seats >= self.connections:
            return self
        # Loaders give up their seats first, down to MANY_LOADERS; then all give up the same share of theirs.
        others = self.connections - self.publishers
        part = min(1.0, seats / (min(self.publishers, MANY_LOADERS) + others))
        viewers, guests, strangers = (max(1, int(n * part)) for n in (self.viewers, self.guests, self.strangers))
        publishers = max(1, seats - viewers - guests - strangers)
        return structs.replace(self, publishers=publishers, viewers=viewers, guests=guests, strangers=strangers)

    def of_one_token(self, all_together: int) -> int:
        return max(1, int(all_together * self.share))


class Timing(Struct, frozen=True):
    """When silence means something, in seconds."""

    stale_intervals: int = 3
    """A loader silent for so many of its intervals is stale (but not within the first second)."""
    lost: float = 30.0
    """A connected loader silent for so long is lost."""
    reconnect: float = 10.0
    """A loader that lost its connection may come back within this time; then it is lost."""
    outcome: float = 30.0
    """A delivered command without an outcome after this time has timed out."""
    commit: float = 0.5
    """Samples wait at most this long for the transaction that stores them."""
    acknowledge: float = 1.0
    """Least time between two acknowledgements to one loader; five times that if it publishes at a slow pace."""
    overview: float = 0.5
    """Time between two overview messages; doubled above 100 loaders."""


class AlertSettings(Struct, frozen=True):
    """Which alerts there are, and who is told of them besides the page."""

    rules: Rules = field(default_factory=Rules)
    webhooks: tuple[str, ...] = ()
    """Addresses to which each is posted as JSON."""
    commands: tuple[str, ...] = ()
    """Commands that are run for each."""


class Settings(Struct, frozen=True):
    """Everything about the backend that can be set."""

    host: str = "127.0.0.1"
    port: int = 8787
    data: Path | None = None
    """Folder of the database; None: memory."""
    store: str = ""
    """Address of a PostgreSQL database that several replicas share; empty: SQLite in `data`."""
    bus: str = ""
    """Address of a Redis server through which replicas hear of each other; empty: there is one dashboard."""
    token_file: Path | None = None
    """None: tokens of this process only, never written."""
    read_only: bool = False
    public_url: str = ""
    """The address people use, if a proxy stands in front."""
    root_path: str = ""
    """The proxy's prefix, for example /penstock."""
    allow_hosts: tuple[str, ...] = ()
    """More names by which clients may call this server."""
    frame_ancestors: tuple[str, ...] = ()
    """Origins that may show the dashboard in a frame."""
    exit_when_idle: float | None = None
    """End by itself so many seconds after the last loader and viewer left."""
    announce: bool = True
    """Write the discovery file."""
    notice: str = ""
    """Something about this start that people should know, for example that there is no folder to write to."""
    log_level: str = "warning"
    retention: Retention = field(default_factory=Retention)
    limits: Limits = field(default_factory=Limits)
    timing: Timing = field(default_factory=Timing)
    alerts: AlertSettings = field(default_factory=AlertSettings)
