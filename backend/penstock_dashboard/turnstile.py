"""Requests of strangers come in one after the other, so many a second, and others need not wait behind them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .security.buckets import TokenBucket


class Turnstile:
    """Lets strangers' requests pass in turn, no faster than a rate."""

    def __init__(self, burst: float, rate: float) -> None:
        self._bucket = TokenBucket(burst, rate)
        self._waiting: deque[tuple[asyncio.Future[None], Callable[[], bool]]] = deque()
        self._keeper: asyncio.Task[None] | None = None

    async def passed(self, gone: Callable[[], bool]) -> None:
        """Return when it is one's turn. Those who have `gone` meanwhile take no turn."""
        if not self._waiting and not self._bucket.take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, gone))
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        await turn

    async def _keep(self) -> None:
        while self._waiting:
            turn, gone = self._waiting.popleft()
            while not gone() and not turn.done() and (wait := self._bucket.take()):
                await asyncio.sleep(wait)
            if not turn.done():
                turn.set_result(None)
        self._keeper = None
