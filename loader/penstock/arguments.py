"""Arguments of a loader: checked, and kept so that others can make the loader again.

Lightning makes a loader anew for every rank, from its attributes: each argument of `__init__` is read from the
attribute of the same name. So every argument has one, and what was not given must not look as if it had been.
"""

from __future__ import annotations


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
