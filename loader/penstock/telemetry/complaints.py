"""What is wrong with publishing, told once for each kind: a line every few seconds would tell nobody more."""

from __future__ import annotations

import logging

log = logging.getLogger("penstock")


class Complaints:
    """Warnings in the log, each kind once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: set[str] = set()

    def __call__(self, kind: str, message: str, *arguments: object) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning(f"loader {self._name}: {message}", *arguments)
