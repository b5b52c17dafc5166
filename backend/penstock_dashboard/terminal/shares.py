"""Where the training thread's time goes: the kinds of time, and what part of it is waiting for data."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol import Rates, Times

KINDS: tuple[tuple[str, str], ...] = (
    ("compute", "compute"),
    ("starvation", "starvation"),
    ("reorder_stall", "reorder stall"),
    ("pin_wait", "pin wait"),
    ("paused", "paused"),
    ("startup", "startup"),
    ("sampler", "sampler"),
)
"""Field of Rates and word, in the order in which they are always shown."""

Shares = Mapping[str, float]
"""Kind → share of the time, 0 to 1; they add up to 1."""


def normalised(parts: Shares) -> Shares | None:
    """Shares of a whole; None if there is no time to share out."""
    whole = sum(parts[kind] for kind, _ in KINDS)
    return {kind: parts[kind] / whole for kind, _ in KINDS} if whole > 0 else None


def of_rates(rates: Rates) -> Shares | None:
    return normalised({kind: getattr(rates, kind) for kind, _ in KINDS})


def of_times(times: Times) -> Shares | None:
    return normalised({kind: getattr(times, f"{kind}_us") for kind, _ in KINDS})


def waiting(shares: Shares) -> float:
    """Share of the time in which training waits for data; a pause is not the data's fault."""
    waits = shares["starvation"] + shares["reorder_stall"] + shares["pin_wait"] + shares["startup"]
    waits += shares["sampler"]
    active = waits + shares["compute"]
    return waits / active if active > 0 else 0.0
