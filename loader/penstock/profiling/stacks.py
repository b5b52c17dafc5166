"""Stacks that were seen, each described once and known by its number from then on.

One table a sampler. It is bounded: when there are too many stacks, new ones are cut shorter and shorter at the leaf,
so that their time goes to a caller that is known. A stack begins below the code that runs the worker, which is the same
for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dis import opmap
from types import CodeType
from typing import Any, NamedTuple

from .ownership import is_users

MOST_STACKS = 20_000
MOST_FRAMES = 20_000
LONGEST_NAME = 256

_RESUME = opmap.get("RESUME", -1)

Place = tuple[CodeType, int]
"""Where a frame is: its code, and the offset of the instruction that it is at."""


class Function(NamedTuple):
    """A function of the program, as it is told and shown."""

    name: str
    """Its qualified name."""
    file: str
    line: int
    """The first one of its definition."""
    user: bool
    """It is the user's own code, and not a library's."""


class News(NamedTuple):
    """What was described since the last time. Numbers go on from there."""

    functions: list[Function]
    frames: list[tuple[int, int]]
    """(function, line)."""
    stacks: list[tuple[int, ...]]
    """Frames, the outermost first."""


class Stacks:
    """Numbers for stacks, the same for the same stack."""

    def __init__(self, roots: frozenset[CodeType], most: int = MOST_STACKS) -> None:
        """`roots`: code from which a stack is to begin; it and what called it are left out."""
        # By identity: functions that read the same in two files are equal to Python.
        self._roots = {id(code) for code in roots}
        self._codes: list[CodeType] = [*roots]
        """Kept, so that no other code gets the identity of one of them."""
        self._most = most
        self._places: dict[tuple[int, int], int] = {}
        self._entered: set[tuple[int, int]] = set()
        self._functions: dict[int, int] = {}
        self._frames: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._news = News([], [], [])

    def number(self, places: Sequence[Place]) -> int:
        """The number of a stack, given from its leaf to its root."""
        frames = []
        for code, offset in places:
            if id(code) in self._roots:
                break
            frames.append(self._frame(code, offset))
        if len(frames) > 1 and (id(places[0][0]), places[0][1]) in self._entered:
            # It was interrupted as it was entered: none of the time was its own.
            del frames[0]
        frames.reverse()
        stack = tuple(frames)
        number = self._numbers.get(stack)
        while number is None and len(self._numbers) >= self._most and stack:
            stack = stack[:-1]
            number = self._numbers.get(stack)
        if number is None:
            number = self._numbers[stack] = len(self._numbers)
            self._news.stacks.append(stack)
        return number

    def take_news(self) -> News:
        """What was described since the last call."""
        news, self._news = self._news, News([], [], [])
        return news

    def _frame(self, code: CodeType, offset: int) -> int:
        place = id(code), offset
        known = self._places.get(place)
        if known is not None:
            return known
        function = self._functions.get(id(code))
        if function is None:
            function = self._functions[id(code)] = len(self._functions)
            self._codes.append(code)
            self._news.functions.append(_described(code))
        frame = function, _line(code, offset)
        number = self._frames.get(frame)
        if number is None:
            number = self._frames[frame] = len(self._frames)
            self._news.frames.append(frame)
        if len(self._places) < MOST_FRAMES:
            self._places[place] = number
            if code.co_code[offset : offset + 1] == bytes([_RESUME]):
                self._entered.add(place)
        return number


def codes_of(*functions: Callable[..., Any]) -> frozenset[CodeType]:
    """The code of functions, and of the comprehensions in them."""
    codes = {function.__code__ for function in functions}
    return frozenset(codes | {part for code in codes for part in code.co_consts if isinstance(part, CodeType)})


def _described(code: CodeType) -> Function:
    name, file = (_text(each) for each in (code.co_qualname, code.co_filename))
    return Function(name, file, max(code.co_firstlineno, 0), is_users(code.co_filename))


def _text(text: str) -> str:
    """What a message may carry: a file's name need not be valid Unicode. Of a long one, the end tells more."""
    return text.encode("utf-8", "backslashreplace").decode()[-LONGEST_NAME:]


def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end:
            return line or code.co_firstlineno
    return code.co_firstlineno
