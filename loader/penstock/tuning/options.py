"""How a loader is to be tuned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Autotune:
    """What `DataLoader(autotune=…)` takes for more than `True`.

    Raises:
        TypeError, ValueError: An argument cannot be meant; the message names it and its value.
    """

    min_workers: int = 1
    """The fewest workers that are tried."""
    max_workers: int | None = None
    """The most workers that are tried. None: as many as the loader's `max_workers`."""
    tolerance: float = 0.03
    """Gains below this share of the time a batch takes are none, and fewer workers are preferred."""

    def __post_init__(self) -> None:
        for name, least in (("min_workers", 1), ("max_workers", self.min_workers)):
            value = getattr(self, name)
            if value is None and name == "max_workers":
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an int, but got {name}={value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, but got {name}={value!r}")
        if not isinstance(self.tolerance, int | float) or not 0.005 <= self.tolerance <= 0.5:
            raise ValueError(f"tolerance must be from 0.005 to 0.5, but got tolerance={self.tolerance!r}")


def meant(autotune: object) -> Autotune | None:
    """What the argument `autotune` means; None: the tuner is off.

    Raises:
        TypeError: It is neither a truth value nor an `Autotune`.
    """
    if isinstance(autotune, Autotune):
        return autotune
    if not isinstance(autotune, bool):
        raise TypeError(f"autotune must be True, False or an Autotune, but got autotune={autotune!r}")
    return Autotune() if autotune else None
