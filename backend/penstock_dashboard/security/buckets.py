"""Rate limits: buckets that fill steadily and are emptied by use."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class TokenBucket:
    """A bucket that fills steadily: what is taken from it keeps to its rate in the long run."""

    def __init__(self, burst: float, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._level = burst
        self._at = clock()

    def take(self, amount: float = 1.0) -> float:
        """Take from the bucket; returns 0.0, or the seconds after which there will be enough."""
        self._fill()
        if self._level >= amount:
            self._level -= amount
            return 0.0
        return (amount - self._level) / self._rate

    def owe(self, amount: float = 1.0) -> float:
        """Take even what is not there; returns the seconds to wait until the debt is paid."""
        self._fill()
        self._level -= amount
        return max(0.0, -self._level / self._rate)

    def wait(self) -> float:
        """Seconds until one may be taken, without taking it."""
        self._fill()
        return 0.0 if self._level >= 1.0 else (1.0 - self._level) / self._rate

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now


class Buckets:
    """A bucket for each of many clients; the ones used longest ago are forgotten."""

    def __init__(self, burst: float, rate: float, most: int = 4096) -> None:
        self._burst = burst
        self._rate = rate
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(self, client: str) -> TokenBucket:
        bucket = self._buckets.pop(client, None) or TokenBucket(self._burst, self._rate)
        self._buckets[client] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket
