"""From bytes to names of keys. Arrows and their kind arrive as sequences that begin as the Escape key does."""

from __future__ import annotations

import codecs
import re

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")
_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}


class Keys:
    """Bytes from a terminal to names of keys."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    @property
    def waiting(self) -> bool:
        """True if it takes a moment more to know whether Escape was pressed or a sequence has begun."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        self._text += self._decoder.decode(data)
        pressed = []
        while self._text:
            key = self._next()
            if key is None:
                break
            if key:
                pressed.append(key)
        return pressed

    def settle(self) -> list[str]:
        """Nothing followed: what began was the Escape key."""
        pressed = ["escape"] if self._text else []
        self._text = ""
        return pressed

    def _next(self) -> str | None:
        """The next key; "" for one that means nothing here; None if more must come first."""
        text = self._text
        if text[0] != "\x1b":
            self._text = text[1:]
            return _NAMES.get(text[0], text[0] if text[0].isprintable() else "")
        found = _SEQUENCE.match(text)
        if found is not None:
            self._text = text[found.end() :]
            return _NAMES.get(found[0].replace("\x1bO", "\x1b["), "")
        if _UNFINISHED.fullmatch(text):
            return None
        self._text = text[1:]
        return "escape"
