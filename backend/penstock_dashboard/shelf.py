"""The last snapshot of each loader, encoded as it came: some tenths of what it takes as objects.

Every owner has so many bytes. Beyond them its own snapshots that are oldest go: those of loaders that are gone before
those of loaders that still report. What else is known of these loaders stays.
"""

from __future__ import annotations

from collections import OrderedDict


class Shelf:
    """The last snapshot of each loader, within so many bytes for each owner."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[int, OrderedDict[int, bytes]] = {}
        """Owner → loader → snapshot, the one that came first first."""
        self._sizes: dict[int, int] = {}

    def put(self, owner: int, loader: int, snapshot: bytes) -> None:
        self.drop(owner, loader)
        kept = self._kept.setdefault(owner, OrderedDict())
        kept[loader] = snapshot
        self._sizes[owner] = self._sizes.get(owner, 0) + len(snapshot)
        while self._sizes[owner] > self._most:
            self._sizes[owner] -= len(kept.popitem(last=False)[1])

    def get(self, owner: int, loader: int) -> bytes | None:
        kept = self._kept.get(owner)
        return kept.get(loader) if kept else None

    def drop(self, owner: int, loader: int) -> None:
        kept = self._kept.get(owner)
        before = kept.pop(loader, None) if kept else None
        if before is not None:
            self._sizes[owner] -= len(before)
