"""Where the training thread's time goes: what part of it each kind takes, and what part is waiting for data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ..protocol import Rates, Times, WaitingKind
from .numbers import KINDS

Shares = Mapping[str, float]
"""Name of a kind → share of the time, 0 to 1; they add up to 1."""

HARMLESS = 0.05
"""Below this share of waiting, data is not the problem."""

_WAITING = [kind.name for kind in KINDS if kind.waiting]
_ACTIVE = [kind.name for kind in KINDS if kind.active]


def normalised(parts: Sequence[float]) -> Shares | None:
    """Shares of a whole, from a part for each kind; None if there is no time to share out."""
    whole = sum(parts)
    return {kind.name: part / whole for kind, part in zip(KINDS, parts, strict=True)} if whole > 0 else None


def of_rates(rates: Rates) -> Shares | None:
    """Shares from a row's rates; None if no time has passed in an epoch."""
    return normalised([getattr(rates, kind.name) for kind in KINDS])


def of_times(times: Times) -> Shares | None:
    """Shares from sums of time."""
    return normalised([getattr(times, f"{kind.name}_us") for kind in KINDS])


def waiting(shares: Shares) -> float:
    """Share of the time in which training waits for data; a pause is not the data's fault."""
    waits = sum([shares[name] for name in _WAITING])
    active = sum([shares[name] for name in _ACTIVE])
    return waits / active if active > 0 else 0.0


def waits_for(shares: Shares) -> WaitingKind | None:
    """What training waits for most; None: it waits for nothing that matters."""
    if waiting(shares) < HARMLESS:
        return None
    return cast(WaitingKind, max(_WAITING, key=lambda name: shares[name]))
