"""The bus of dashboards in one process: of a single one, it reaches nobody."""

from __future__ import annotations

import asyncio

from . import Bus

Exchange = dict[str, "InProcess"]
"""Replica → its bus."""


class InProcess(Bus):
    """Reaches those who were given the same exchange, on the same event loop."""

    def __init__(self, exchange: Exchange | None = None) -> None:
        super().__init__()
        self._exchange: Exchange = {} if exchange is None else exchange
        self._name = ""

    async def start(self, name: str, among: str) -> None:  # noqa: ARG002
        self._name = name
        self._exchange[name] = self

    async def stop(self) -> None:
        self._exchange.pop(self._name, None)

    def send(self, message: bytes, to: str = "") -> None:
        for name, bus in self._exchange.items():
            if bus is not self and to in ("", name):
                asyncio.get_running_loop().call_soon(bus.on_message, message)
