"""Everything about the backend that can be set, with the defaults that a person gets who sets nothing."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

VERSION = "0.1.0"

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


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
    """What one client, or all together, may ask of the backend."""

    publishers: int = 4096
    """Loaders connected at a time."""
    viewers: int = 256
    """Viewers connected at a time."""
    connections: int = 6000
    """TCP connections of any kind at a time."""
    loaders: int = 8192
    """Loaders known at a time; beyond it, the ones gone longest are forgotten first."""
    loaders_per_run: int = 4096
    message_rate: float = 400.0
    """Messages per second that one loader may send for long; a faster one is read more slowly."""
    message_burst: float = 4000.0
    """Messages that it may send at once, for example after an outage."""
    bad_messages: int = 3
    """After so many messages that are not understood, the connection is closed."""
    body: int = 64 << 10
    """Bytes in the body of an HTTP request."""
    handshake: float = 10.0
    """Seconds within which a request, its body, or the first message on a websocket must be complete."""
    viewer_events: int = 1000
    """Events that wait for one viewer; beyond it the oldest are dropped and a gap is shown."""
    viewer_messages: float = 20.0
    """Messages per second that one viewer may send for long."""
    login_failures: int = 10
    """Failed sign-ins at once from one address."""
    login_rate: float = 1 / 6
    """Failed sign-ins per second for long."""
    commands: int = 60
    """Commands at once by one token."""
    command_rate: float = 5.0
    """Commands per second by one token for long."""
    open_commands: int = 16
    """Commands under way for one loader."""
    history_points: int = 5000


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
    """Least time between two acknowledgements to one loader."""
    overview: float = 0.5
    """Time between two overview messages; doubled above 100 loaders."""


class Settings(Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 8787
    data: Path | None = None
    """Folder of the database; None: memory."""
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
    log_level: str = "warning"
    retention: Retention = field(default_factory=Retention)
    limits: Limits = field(default_factory=Limits)
    timing: Timing = field(default_factory=Timing)
