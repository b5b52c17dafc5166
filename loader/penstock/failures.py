"""Exceptions that cross from a worker to training, and errors that say what cannot be pickled."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn


class _VerbatimKeyErrorText(str):
    """KeyError shows the repr of its argument, which would make a traceback one long line of escapes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, with its type where that can be pickled. It holds no frames and no locals."""

    pickled_type: bytes | None
    type_name: str
    text: str
    """Where it happened, in words, and the traceback."""
    message: str = ""
    stage: str = "loading"
    """Whose code raised it: as `where` in `protocol.ErrorEvent`."""
    worker: int = -1
    sample: str = ""
    """Index of the sample at which it was raised, where that is known."""

    @classmethod
    def capture(
        cls, error: BaseException, where: str, stage: str = "loading", worker: int = -1, sample: str = ""
    ) -> Failure:
        kind = type(error)
        try:
            pickled: bytes | None = pickle.dumps(kind)
        except Exception:  # a class made in a function, say
            pickled = None
        trace = "".join(traceback.format_exception(error))
        text = f"Caught {kind.__name__} {where}.\nOriginal {trace}"
        return cls(pickled, kind.__name__, text, message_of(error), stage, worker, sample)

    def reraise(self) -> NoReturn:
        """Raise an exception of the original type with the worker's traceback as its text."""
        # No variable may hold the exception: its traceback holds this frame, and the cycle would keep the iterator
        # of the frames below, and with it the pool, alive until the next garbage collection.
        raise self._rebuilt()

    def _rebuilt(self) -> BaseException:
        kind: Any = RuntimeError
        if self.pickled_type is not None:
            try:
                kind = pickle.loads(self.pickled_type)
            except Exception:  # the type exists in the worker only
                kind = RuntimeError
        text: str = _VerbatimKeyErrorText(self.text) if kind is KeyError else self.text
        try:
            rebuilt: BaseException = kind(message=text) if getattr(kind, "message", None) else kind(text)
        except Exception:  # its constructor wants something else
            return RuntimeError(self.text)
        return rebuilt


def message_of(error: BaseException) -> str:
    """What an exception says of itself, whatever its author made of `__str__`."""
    try:
        return str(error)
    except Exception:  # its own __str__ fails
        return ""


def raise_error(error: Failure | BaseException) -> NoReturn:
    """Raise what another thread or process has left."""
    if isinstance(error, Failure):
        error.reraise()
    try:
        raise error
    finally:
        del error  # see Failure.reraise


class WorkerLostError(RuntimeError):
    """A worker process ended although nobody had asked it to."""


def signal_name(exitcode: int) -> str:
    """The name of the signal that ended a process, or an empty string."""
    if exitcode >= 0:
        return ""
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


class UnpicklableError(TypeError):
    """Something that has to go to another process cannot be pickled."""


def describe_unpicklable(root: object, name: str, dumps: Callable[[object], object]) -> str:
    """Name the innermost part of `root` that cannot be pickled, as a path that starts with `name`."""
    path, culprit = name, root
    seen: set[int] = set()
    while id(culprit) not in seen:
        seen.add(id(culprit))
        for step, part in _parts(culprit):
            if not _can(dumps, part):
                path, culprit = path + step, part
                break
        else:
            break
    return f"{path} (a {type(culprit).__module__}.{type(culprit).__qualname__})"


def _can(dumps: Callable[[object], object], part: object) -> bool:
    try:
        dumps(part)
    except Exception:
        return False
    return True


def _parts(thing: Any) -> Iterator[tuple[str, object]]:
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{position}]", value) for position, value in enumerate(thing))
    if is_dataclass(thing) and not isinstance(thing, type):
        yield from ((f".{field.name}", getattr(thing, field.name)) for field in fields(thing))
        return
    attributes = getattr(thing, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(thing, type):
        yield from ((f".{key}", value) for key, value in attributes.items())
