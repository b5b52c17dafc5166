"""What a loader said, in a file: read, written, and moved to another time."""

from __future__ import annotations

import functools
import lzma
from pathlib import Path
from typing import Any

import msgspec
from penstock.protocol import Events, Hello, Moment, Snapshot

FOLDER = Path(__file__).parent
SUFFIX = ".recording"


class Recording(msgspec.Struct):
    """Everything that one loader said from its beginning until the recorder had enough."""

    hello: Hello
    start: float
    """When it was recorded, Unix time."""
    messages: list[tuple[float, Snapshot | Events]]
    """Each with the moment at which it was said, in seconds after `start`. They are numbered from 0 without a hole."""


def save(name: str, recording: Recording) -> int:
    """Write a recording under a name and return its size in bytes."""
    return (FOLDER / f"{name}{SUFFIX}").write_bytes(lzma.compress(msgspec.msgpack.encode(recording), preset=9))


@functools.cache
def load(name: str) -> Recording:
    return msgspec.msgpack.decode(lzma.decompress((FOLDER / f"{name}{SUFFIX}").read_bytes()), type=Recording)


def moved(value: Any, seconds: float) -> Any:
    """The same message, said so many seconds later: every moment in it is moved, wherever it stands."""
    if isinstance(value, list):
        return [moved(each, seconds) for each in value]
    changed = {name: getattr(value, name) + seconds for name in _moments(value.__class__) if getattr(value, name)}
    changed |= {name: moved(getattr(value, name), seconds) for name in _parts(value.__class__)}
    return msgspec.structs.replace(value, **changed) if changed else value


@functools.cache
def _moments(kind: Any) -> list[str]:
    """The fields that are Unix time."""
    return [each.name for each in _fields(kind) if each.type in (Moment, Moment | None)]


@functools.cache
def _parts(kind: Any) -> list[str]:
    """The fields in which there may be moments: structs, and lists of them."""
    return [each.name for each in _fields(kind) if _reaches_moment(each.type)]


def _fields(kind: Any) -> tuple[Any, ...]:
    return msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else ()


def _reaches_moment(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_moments(kind) or _parts(kind))
    return any(map(_reaches_moment, getattr(kind, "__args__", ())))
