"""Arguments of a loader: checked, and kept so that others can make the loader again.

Lightning makes a loader anew for every rank, from its attributes: each argument of `__init__` is read from the
attribute of the same name. So every argument has one, and what was not given must not look as if it had been.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from .adoption.environment import is_read_only
from .agent.options import Remote
from .telemetry.address import resolve
from .tuning.options import Autotune, meant


class Assumed(int):
    """A number that nobody gave. As an argument it is taken for no argument at all."""


def given(value: int | None) -> int | None:
    return None if isinstance(value, Assumed) else value


def whole(argument: str, value: int | None, default: int | None, least: int, most: int | None = None) -> int | None:
    """Check a whole number."""
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{argument} must be an int, but got {argument}={value!r}")
    if value < least:
        raise ValueError(f"{argument} must be at least {least}, but got {argument}={value!r}")
    if most is not None and value > most:
        raise ValueError(f"{argument} must be at most {most}, but got {argument}={value!r}")
    return value


def seconds(argument: str, value: object, least: float, most: float) -> float:
    """Check a number of seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{argument} must be a number of seconds, but got {argument}={value!r}")
    if not least <= value <= most:
        raise ValueError(f"{argument} must be from {least:g} to {most:g} seconds, but got {argument}={value!r}")
    return float(value)


def text(argument: str, value: object) -> str:
    """Check a name."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, but got {argument}={value!r}")
    if not value:
        raise ValueError(f"{argument} must not be empty")
    return value


def errors(argument: str, value: object) -> float:
    """Check a number of errors, or a share."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{argument} must be a number (an int) or a share (a float), but got {argument}={value!r}")
    if value < 0 or (isinstance(value, float) and not value <= 1):
        raise ValueError(f"{argument} must be at least 0, and as a float at most 1.0, but got {argument}={value!r}")
    return value


def one_of(argument: str, value: object, words: tuple[str, ...]) -> str:
    """Check a word."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, but got {argument}={value!r}")
    if value not in words:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, words))}, but got {argument}={value!r}")
    return value


def _told(refresh: object) -> object:
    """The method of the same name stands in the argument's place where a loader is made again from its attributes."""
    engine = getattr(getattr(refresh, "__self__", None), "_penstock", None)
    return refresh if engine is None else engine.options.refresh


@dataclass(frozen=True, slots=True)
class Options:
    """What a DataLoader is given beyond torch's arguments; what each means stands there."""

    name: str
    memory_budget: int | None
    max_workers: int
    max_retries: int
    record_samples: int
    stack_after: float
    monitor: str | bool | None
    publish_interval: float
    allow_control: bool
    refresh: str
    on_error: str
    max_errors: float
    retries: int
    sample_timeout: float | None
    quarantine: str | None
    autotune: bool | Autotune
    workers: str | Remote
    prefetch_epochs: bool

    def show_on(self, loader: object) -> None:
        """Have each option as an attribute of the loader, as torch's arguments are, unless its class has that name.

        They are for people, and for Lightning, which makes loaders again from them; the engine reads its own.
        """
        for field in fields(self):
            if not hasattr(type(loader), field.name):
                loader.__dict__[field.name] = getattr(self, field.name)

    @classmethod
    def checked(
        cls,
        *,
        name: str,
        memory_budget: int | None,
        max_workers: int | None,
        max_retries: int,
        record_samples: int,
        stack_after: float,
        monitor: str | bool | None,
        publish_interval: float,
        allow_control: bool,
        refresh: str,
        on_error: str,
        max_errors: float,
        retries: int,
        sample_timeout: float | None,
        quarantine: str | os.PathLike[str] | None,
        autotune: bool | Autotune,
        workers: str | Remote,
        prefetch_epochs: bool,
    ) -> Options:
        """Raise TypeError or ValueError for an argument that cannot be meant; each names argument and value."""
        resolve(monitor)  # says what is wrong with it
        if sample_timeout is not None and on_error == "raise":
            raise ValueError('sample_timeout needs on_error="skip" or "replace": what is to be done instead?')
        if sample_timeout is not None and workers == "thread":
            raise ValueError(
                'sample_timeout needs workers="process", because a thread cannot be ended, '
                f"but got sample_timeout={sample_timeout!r}, workers={workers!r}"
            )
        most = max(128, 4 * (os.cpu_count() or 1))
        if meant(autotune) is not None and not allow_control:
            raise ValueError(
                f"with allow_control=False nobody may change the number of workers, but got autotune={autotune!r}"
            )
        return cls(
            text("name", name),
            whole("memory_budget", memory_budget, None, 1),
            whole("max_workers", max_workers, most, 1) or most,
            whole("max_retries", max_retries, 2, 0) or 0,
            whole("record_samples", record_samples, 0, 0, 1000) or 0,
            seconds("stack_after", stack_after, 0.01, 86400),
            monitor,
            seconds("publish_interval", publish_interval, 0.01, 60),
            bool(allow_control) and not is_read_only(),
            one_of("refresh", _told(refresh), ("warn", "auto", "never")),
            one_of("on_error", on_error, ("raise", "skip", "replace")),
            errors("max_errors", max_errors),
            whole("retries", retries, 1, 0, 100) or 0,
            None if sample_timeout is None else seconds("sample_timeout", sample_timeout, 0.05, 86400),
            None if quarantine is None else text("quarantine", os.fspath(quarantine)),
            autotune,
            workers if isinstance(workers, Remote) else one_of("workers", workers, ("process", "thread")),
            bool(prefetch_epochs),
        )


OPTIONS = tuple(field.name for field in fields(Options))
"""Their names, which are those of the arguments."""
