"""Runs as they are kept: pinned, hidden, deleted, and who did that.

A run is its loaders: its place in the overview ends with the last of them. What was done is written down apart, so that
it is still known of a run that was deleted. The store says which place is the last that a person gave (`RunPlace`): at
another replica somebody may have given another one in the same moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
from penstock.insight.runs import change_in_words
from penstock.insight.words import plural
from penstock.protocol import KnownRun, Place, RunChange

from .commands import Asker, CommandBook
from .problems import Problem
from .registry import Entry, Registry
from .store import RunChangeStored, RunPlace, Store

log = logging.getLogger("penstock")

AT_ONCE = 64
"""Loaders that are deleted in one transaction: what is dropped must go through the write-ahead log."""


class Runs:
    """All runs that are known."""

    def __init__(
        self, registry: Registry, store: Store, commands: CommandBook, placed: Callable[[RunPlace], None]
    ) -> None:
        """`placed`: a run has another place, which is stored."""
        self._registry = registry
        self._store = store
        self._commands = commands
        self._placed = placed

    def all(self) -> list[KnownRun]:
        """The newest first, pinned ones above the others."""
        entries: dict[str, list[Entry]] = {}
        for entry in self._registry:
            entries.setdefault(entry.run, []).append(entry)
        known = [_known(run, of_run) for run, of_run in entries.items()]
        return sorted(known, key=lambda run: (run.place != "pinned", -run.started, run.run))

    async def put(self, run: str, place: Place, asker: Asker) -> KnownRun:
        """Give a run another place in the overview; returns when that is stored."""
        entries = self._entries(run)
        change = _told(RunChange(time.time(), run, place, asker.by, asker.origin, len(entries)))
        given = await self._store.put_place(run, place, _stored(change))
        if given.number > self._registry.place_of(run).number:
            log.info("run %s: %s", run, change.text)
        self._placed(given)
        return _known(run, self._entries(run))

    async def delete(self, run: str, asker: Asker) -> RunChange:
        """Take every trace of a run away but that it was deleted; returns when that is stored."""
        entries = self._entries(run)
        connected = [entry for entry in entries if entry.connected]
        if connected:
            raise Problem(
                409,
                "run-is-connected",
                f"“{run}” cannot be deleted: {plural(len(connected), 'loader is', 'loaders are')} connected. "
                "End its training first, or hide the run.",
            )
        change = RunChange(time.time(), run, "deleted", asker.by, asker.origin, len(entries))
        self._note(change)
        for first in range(0, len(entries), AT_ONCE):
            for entry in entries[first : first + AT_ONCE]:
                # One that came back meanwhile begins anew; it is the same loader, and has a place in the registry.
                if not entry.connected and self._registry.get(entry.id) is entry:
                    self._commands.ended(entry, "the run was deleted")
                    self._registry.forget(entry)
            self._store.forget_commands(run)
            await self._store.committed()
        return _told(change)

    def _entries(self, run: str) -> list[Entry]:
        entries = self._registry.of_run(run)
        if not entries:
            raise Problem(404, "unknown-run", f"No run “{run[:256]}” is known. GET /api/runs lists them all.")
        return entries

    def _note(self, change: RunChange) -> None:
        change = _told(change)
        self._store.run_changed(_stored(change))
        log.info("run %s: %s", change.run, change.text)


def _told(change: RunChange) -> RunChange:
    return msgspec.structs.replace(change, text=change_in_words(change))


def _stored(change: RunChange) -> RunChangeStored:
    return RunChangeStored(change.at, change.run, msgspec.json.encode(change))


def _known(run: str, entries: list[Entry]) -> KnownRun:
    return KnownRun(
        run,
        entries[0].place,
        len(entries),
        sum(entry.connected for entry in entries),
        max(entry.hello.started for entry in entries),
        max(entry.seen for entry in entries),
    )
