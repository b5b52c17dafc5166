"""What a lock among workers lets through. Pure.

Somebody who waits for a lock waits because another has it. Where somebody always does, the lock is never free, and more
workers bring nothing. Where somebody seldom does, it has room, and how much is a matter of how often two want it at
once: as many as there are workers come and go (the "machine repair" queue), which gives how busy it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from .eras import Era

SELDOM = 0.1
"""Share of the moments with somebody waiting up to which a lock is taken for no limit."""


def capacity(seen: Sequence[Era]) -> tuple[float, float]:
    """Batches a second that locks let through (0: no lock was seen to matter), and the share of the moments at which
    somebody waited for one, in the time that says most of it.
    """
    told = [era for era in seen if era.told and era.enough and era.workers > 1]
    best = max(told, key=lambda era: era.crowded / era.glances, default=None)
    if best is None or best.crowded <= SELDOM * best.glances:
        return 0.0, 0.0
    crowded = best.crowded / best.glances
    return best.batches / busy(best.workers, crowded), crowded


def busy(workers: int, crowded: float) -> float:
    """Share of the time for which a lock is taken, if for this share of it somebody waits besides."""
    low, high = 1e-6, 1e6  # time with the lock, by time without
    for _ in range(60):
        middle = (low * high) ** 0.5
        if 1.0 - sum(_states(workers, middle)[:2]) < crowded:
            low = middle
        else:
            high = middle
    return max(1.0 - _states(workers, low)[0], 0.05)


def _states(workers: int, ratio: float) -> list[float]:
    """How likely it is that none, one, two, … have the lock or wait for it."""
    weights = [1.0]
    for there in range(workers):
        weights.append(weights[-1] * (workers - there) * ratio)
        if weights[-1] > 1e100:
            weights = [weight / 1e100 for weight in weights]
    whole = sum(weights)
    return [weight / whole for weight in weights]
