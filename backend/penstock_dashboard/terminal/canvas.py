"""Text with styles, cut and filled to a width. Styles are names; a terminal gives them colours, or none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

PALETTE = {
    "plain": "",
    "dim": "2",
    "bold": "1",
    "good": "32",
    "warn": "33",
    "bad": "31",
    "accent": "36",
    "chosen": "7",
    "compute": "32",
    "starvation": "31",
    "reorder_stall": "35",
    "pin_wait": "34",
    "paused": "90",
    "startup": "33",
    "sampler": "36",
}
"""Style → SGR parameters. Only the sixteen colours that every theme has chosen with its background in mind."""
MONOCHROME = {"bold": "1", "chosen": "7"}


class Span(NamedTuple):
    """A piece of a line in one style."""

    text: str
    style: str = "plain"


Line = Sequence[Span]
EMPTY: Line = ()


def line(*parts: Span | str) -> Line:
    return [part if isinstance(part, Span) else Span(part) for part in parts]


def clean(text: str) -> str:
    """What others wrote may hold escape sequences; on a terminal they would be obeyed."""
    return "".join(each if each.isprintable() else " " for each in text)


def width(text: str) -> int:
    """Columns on the screen."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: int) -> str:
    """The text, or as much as fits with a sign that there was more."""
    if width(text) <= most:
        return text
    while text and width(text) > most - 1:
        text = text[:-1]
    return f"{text}…" if most > 0 else ""


def left(text: str, columns: int) -> str:
    text = cut(text, columns)
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    text = cut(text, columns)
    return " " * (columns - width(text)) + text


def fitted(parts: Line, columns: int) -> Line:
    """A line that is no wider than the screen."""
    result, room = [], columns
    for text, style in parts:
        if room <= 0:
            break
        shown = cut(clean(text), room)
        result.append(Span(shown, style))
        room -= width(shown)
    return result


def spread(start: Line, end: Line, columns: int) -> Line:
    """One part at the left edge and one at the right; the left one gives way."""
    room = columns - sum(width(text) for text, _ in end) - 1
    start = fitted(start, room)
    gap = max(1, columns - sum(width(text) for text, _ in [*start, *end]))
    return [*start, Span(" " * gap), *end]


def wrapped(parts: Iterable[Span], columns: int, most: int) -> list[Line]:
    """Words over as many lines as they need, at most `most`."""
    lines: list[list[Span]] = [[]]
    used = 0
    words = [Span(word, style) for text, style in parts for word in clean(text).split()]
    for place, (word, style) in enumerate(words):
        if used and used + 1 + width(word) > columns:
            if len(lines) == most:
                if used < columns:
                    lines[-1].append(Span("…", words[place - 1].style))
                break
            lines.append([])
            used = 0
        shown = f" {word}" if used else word
        lines[-1].append(Span(shown, style))
        used += width(shown)
    return [fitted(each, columns) for each in lines if each]


def painted(parts: Line, colour: bool) -> str:
    """The line as bytes for a terminal will be: with escape sequences, reset at its end."""
    palette = PALETTE if colour else MONOCHROME
    codes = ((text, ";".join(filter(None, map(palette.get, style.split())))) for text, style in parts)
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if code else text for text, code in codes)


def plain(parts: Line) -> str:
    return "".join(text for text, _ in parts).rstrip()
