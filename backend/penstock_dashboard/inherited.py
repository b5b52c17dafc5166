"""What another replica stored and did not tell, because it was killed or had not heard who looks here: from the store.

1. Commands. Whoever takes a loader over takes over its open commands. When a replica is gone, the others look for those
   of which it did not live to tell. Whoever asks again for what a killed replica took, under the same Idempotency-Key,
   gets that.
2. Events. Those of a loader that somebody looks at here are read, after the last that each viewer was sent, when the
   loader's replica begins to tell of it, when that is gone, and when the loader comes here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from .bus.messages import Ordered
from .commands import KEYS_KEPT, MOST_KEYS
from .hub import Connection
from .registry import Entry
from .store import CommandsAsked, CommandStored

if TYPE_CHECKING:
    from .core import Backend

log = logging.getLogger("penstock.bus")

LATELY = 60.0
"""Seconds for which a replica that is gone may have kept a command to itself."""


class Inherited:
    """Looks in the store for what others left there."""

    def __init__(self, backend: Backend, tell: Callable[[CommandStored, str], None]) -> None:
        """`tell`: how a command stands, to one replica."""
        self._backend = backend
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def arrived(self, entry: Entry) -> None:
        """A loader that was elsewhere is here now."""
        self.catch_up(entry)
        self._begin(self._take_over(entry))

    # ------------------------------------------------------------------------------------------------ events

    def catch_up(self, entry: Entry) -> None:
        """Show those who look at a loader what was stored of it and not told here."""
        for connection in self._backend.hub.watchers(entry.id):
            after = connection.viewer.reread(entry.id)
            if after is not None:
                self._begin(self._reread(connection, entry, after))

    async def _reread(self, connection: Connection, entry: Entry, after: int) -> None:
        try:
            await self._backend.backfill(connection, entry, after)
        except Exception:
            connection.close("events could not be read; come back")  # it waits for them
            raise

    # ---------------------------------------------------------------------------------------------- commands

    def ordered(self, ordered: Ordered) -> None:
        """A command that another replica stored is for a loader that is here."""
        self._begin(self._adopt(ordered))

    def look_for_commands(self) -> None:
        """A replica is gone: it may have stored commands for loaders that are here."""
        self._begin(self._adopt_late())

    async def recall(self, idempotency: str) -> None:
        """Commands that came with this key at another replica, if there are any: from now on they are known here, and
        they are seen to once more.
        """
        asked = CommandsAsked(idempotency=idempotency, since=time.time() - KEYS_KEPT, limit=MOST_KEYS)
        found = (await self._backend.store.commands(asked))[::-1]
        self._backend.commands.remember(found)
        for stored in found:
            entry = self._backend.registry.get(stored.loader)
            if not self._adopt_here(stored) and entry is not None:
                self._backend.replicas.ordered(entry, stored.id)

    async def _adopt(self, ordered: Ordered) -> None:
        """Take a command on, and say how it stands: who asks may have begun anew, and not know."""
        stored = await self._backend.store.find_command(ordered.command)
        if stored is not None and self._adopt_here(stored):
            self._tell(self._backend.commands.stored(stored.id, stored.loader) or stored, ordered.sender)

    async def _take_over(self, entry: Entry) -> None:
        for stored in reversed(await self._backend.store.open_commands(entry.id)):
            self._backend.commands.adopt(stored)
        self._backend.commands.deliver(entry)

    async def _adopt_late(self) -> None:
        asked = CommandsAsked(since=time.time() - LATELY, limit=MOST_KEYS)
        for stored in reversed(await self._backend.store.commands(asked)):
            self._adopt_here(stored)

    def _adopt_here(self, stored: CommandStored) -> bool:
        """Whether its loader is here, so that it is seen to."""
        entry = self._backend.registry.get(stored.loader)
        if entry is None or not entry.here:
            return False
        self._backend.commands.adopt(stored)
        self._backend.commands.deliver(entry)
        return True

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("what another replica left could not be seen to", exc_info=error)
