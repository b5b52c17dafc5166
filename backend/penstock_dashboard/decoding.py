"""Bytes from loaders, to messages that can be trusted. Pure: no connection, no state.

A newer loader of the same major version may send kinds of events and messages that are unknown here: they
are left out. Everything else that does not fit the protocol is refused with the reason.
"""

from __future__ import annotations

import math
import re
from typing import get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple
from penstock.protocol import (
    PROTOCOL,
    Between,
    Event,
    Events,
    Goodbye,
    Hello,
    Identity,
    Load,
    Outcome,
    Snapshot,
    ToBackend,
)

_messages: msgspec.msgpack.Decoder[ToBackend] = msgspec.msgpack.Decoder(ToBackend)
_event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)

EVENT_KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(Event))
MESSAGE_TYPES = ("hello", "snapshot", "events", "outcome", "goodbye", "load")
MOST_VERSIONS = 32

_LABEL = re.compile(r"[A-Za-z0-9._-]+")


class BadMessage(Exception):
    """What is wrong with a message, in words for the person who wrote the sender."""


class _Kind(msgspec.Struct):
    kind: str = ""


class _Type(msgspec.Struct):
    type: str = ""
    protocol: tuple[int, int] | None = None


class _LooseEvents(msgspec.Struct, tag="events"):
    seq: int
    events: list[msgspec.Raw]


Sequenced = Snapshot | Events | Goodbye


def decode(data: bytes, minor: int = PROTOCOL[1]) -> ToBackend | None:
    """A message, or None for one of a kind that only a newer loader knows. `minor` is that loader's
    version.
    """
    try:
        message = _messages.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return _second_look(data, minor, error)
    if isinstance(message, Hello):
        _check_hello(message)
    elif isinstance(message, Snapshot):
        if message.between is not UNSET and not all(map(math.isfinite, _extremes(message.between))):
            raise BadMessage("snapshot: every number in between must be finite")
    elif isinstance(message, Load):
        _check_load(message)
    return message


def _second_look(data: bytes, minor: int, error: Exception) -> ToBackend | None:
    try:
        head = msgspec.msgpack.decode(data, type=_Type)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise BadMessage(f"not a message: {error}") from None
    if head.type == "events":
        return _known_events(data, error)
    if head.type == "hello" and head.protocol is not None and head.protocol[0] != PROTOCOL[0]:
        raise BadMessage(_versions(head.protocol))
    if head.type not in MESSAGE_TYPES and minor > PROTOCOL[1]:
        return None
    raise BadMessage(f"{head.type or 'a message'}: {error}"[:256])


def _known_events(data: bytes, error: Exception) -> Events:
    """Decode event by event, and leave out kinds that are not known."""
    try:
        loose = msgspec.msgpack.decode(data, type=_LooseEvents)
        kept = []
        for raw in loose.events[:1024]:
            if msgspec.msgpack.decode(raw, type=_Kind).kind in EVENT_KINDS:
                kept.append(_event.decode(raw))
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise BadMessage(f"events: {error}"[:256]) from None
    if loose.seq < 0 or len(loose.events) > 1024:
        raise BadMessage(f"events: {error}"[:256])
    return Events(loose.seq, kept)


def _check_hello(hello: Hello) -> None:
    if hello.protocol[0] != PROTOCOL[0]:
        raise BadMessage(_versions(hello.protocol))
    identity: Identity = hello.identity
    # The protocol's pattern ends in $, which lets a final line break pass.
    if not (_LABEL.fullmatch(identity.run) and _LABEL.fullmatch(identity.name)):
        raise BadMessage("hello: run and name may have letters, digits and . _ - only")
    if len(hello.versions) > MOST_VERSIONS or any(len(name) > 64 for name in hello.versions):
        raise BadMessage(f"hello: at most {MOST_VERSIONS} versions, with names of at most 64 characters")
    if not math.isfinite(hello.config.timeout):
        raise BadMessage("hello: config.timeout must be a finite number")


def _extremes(between: Between) -> tuple[float, ...]:
    return (*astuple(between.low), *astuple(between.high))


def _check_load(load: Load) -> None:
    """What is not a number would be taken for any: its limits do not hold for it."""
    if not all(map(math.isfinite, (load.at, load.channels, load.company, load.allowed, load.others, load.width))):
        raise BadMessage("load: every number must be finite")


def _versions(theirs: tuple[int, int]) -> str:
    return (
        f"this dashboard speaks protocol {PROTOCOL[0]}.{PROTOCOL[1]} and the loader {theirs[0]}.{theirs[1]}: "
        "install the same major version of penstock on both sides"
    )


__all__ = ["BadMessage", "Outcome", "Sequenced", "decode"]
