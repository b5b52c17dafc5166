"""What the backend says, and commands in particular: understood or refused with a reason, applied once, answered."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from ..protocol import Command, Outcome, ToLoader
from .source import Source

MOST_REMEMBERED = 256
MOST_AT_ONCE = 32
"""Commands between two snapshots. More than that is no person, and each may cost loading something."""

_messages: msgspec.msgpack.Decoder[ToLoader] = msgspec.msgpack.Decoder(ToLoader)


class _Head(msgspec.Struct):
    type: str = ""
    id: str = ""


class BadCommand(Exception):
    """A command that cannot be followed, but can be answered."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(reason)
        self.command = command


def decode(data: bytes | str) -> ToLoader | Command | None:
    """A message, or None for one that only a newer backend would send, or that is no message at all."""
    if isinstance(data, str):
        return None
    try:
        head = msgspec.msgpack.decode(data, type=_Head)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    try:
        return Command.decode(data) if head.type == "command" else _messages.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if head.type == "command" and 0 < len(head.id) <= 256:
            raise BadCommand(head.id, str(error)) from None
        return None


class CommandDesk:
    """Hands every command to the source once. The backend delivers again after a lost connection; the answer is then
    the same as before, even if somebody in the training process has asked for something else since.
    """

    def __init__(self, source: Source, send: Callable[[Outcome], None]) -> None:
        self._source = source
        self._send = send
        self._known: OrderedDict[str, Outcome | None] = OrderedDict()
        self._left = MOST_AT_ONCE

    def reopen(self) -> None:
        """Another interval has begun."""
        self._left = MOST_AT_ONCE

    def take(self, command: Command) -> None:
        if command.id in self._known:
            outcome = self._known[command.id]
            if outcome is not None:
                self._send(outcome)
            return
        self._known[command.id] = None
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        reason = self._objection()
        if reason:
            self.reject(command.id, reason)
            return
        self._left -= 1
        try:
            self._source.apply(command, self._answer)
        except Exception as error:  # whatever it is, it is the asker's and not training's
            self.reject(command.id, f"{type(error).__name__}: {error}")

    def reject(self, command: str, reason: str) -> None:
        self._answer(Outcome(command, "rejected", time.time(), reason=reason[:256]))

    def _objection(self) -> str:
        """Why no command is followed now. Nobody else in the loader asks whether commands are allowed."""
        config = self._source.config()
        if config.engine == "torch":
            return "this is an ordinary torch DataLoader: it can be watched but not controlled"
        if not config.control:
            return "this loader takes no commands (allow_control=False)"
        if self._left <= 0:
            return f"more than {MOST_AT_ONCE} commands came at once"
        return ""

    def _answer(self, outcome: Outcome) -> None:
        """Called from any thread: everything in here is atomic, or harmless when two come together."""
        if outcome.command in self._known:
            self._known[outcome.command] = outcome
        self._send(outcome)
