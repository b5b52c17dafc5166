"""Texts that several viewers are sent, made once: a few bytes' worth of the latest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Encoded:
    """Texts that were encoded for one viewer and will do for others, within a limit in bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._texts: OrderedDict[str, str] = OrderedDict()

    def get(self, name: str, make: Callable[[], str | None]) -> str | None:
        """The text of this name; made anew if it is not there any more. None if there is none to make."""
        text = self._texts.get(name)
        if text is None:
            text = make()
            if text is not None:
                self.put(name, text)
        return text

    def put(self, name: str, text: str) -> None:
        self.drop(name)
        self._texts[name] = text
        self._size += len(text)
        while self._size > self._most:
            self._size -= len(self._texts.popitem(last=False)[1])

    def drop(self, name: str) -> None:
        self._size -= len(self._texts.pop(name, ""))
